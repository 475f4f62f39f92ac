-- KEYS: turns blocked keyed held index
-- Part of a claim: at most one message of each key is delivered at a time. Messages that have the turn pass. The others are
-- blocked or become dead letters. Uses the script's locals `meta`, `keyed` and `catching_up`.

-- Whether an event that was read from the log at this position already waits, or is in the group's own stream. After a seek
-- back, an event that is not settled is not delivered twice. Also returns the index value.
local function lives(id, position)
  local at = redis.call('HGET', INDEX, id)
  local first = at and string.sub(at, 1, 1)
  if not at or first == 'd' then return false, at end
  local noted = first == 'p' and string.sub(at, 2) or first == 'h' and redis.call('HGET', KEYED, id)
  if noted then
    local _, its = key_in(noted)
    return its == position, at
  end
  local entry = redis.call('XRANGE', STREAM, at, at)[1]
  return entry and (said(entry[2]).o or order_position(at)) == position, at
end

-- Handles messages without the turn of their key: blocks them in order, or makes them dead letters. (Hot path: with few keys,
-- nearly every event comes here once.)
local function set_aside(stream, entries)
  local refs, ids, blocked, held, index, counts = {}, {}, {}, {}, {}, {}
  local most, n, last, begins = tonumber(meta[7] or '1000'), 0, nil, nil
  for i, entry in ipairs(entries) do refs[i], ids[i] = entry[1], entry[2][6] end
  redis.call('XACK', stream.key, stream.group, unpack(refs))
  if stream.mark == '' then redis.call('XDEL', STREAM, unpack(refs)) end
  local known = stream.mark ~= '' and redis.call('HMGET', INDEX, unpack(ids)) or {}
  for i, entry in ipairs(entries) do
    local fields, turn, position, id = entry[2], entry.turn, entry.position, ids[i]
    local key, body, task, expires = fields[4], fields[2], '', '0'
    if #fields == 8 and fields[7] == 't' then  -- a job that does not expire
      task = fields[8]
    elseif #fields > 6 then
      local words = said(fields)
      task, expires = words.t or '', words.x or '0'
    end
    local given, at = false, nil
    -- Dead letters that this call wrote have changed the index.
    if known[i] or stopped_letters > 0 and stream.mark ~= '' then given, at = lives(id, position) end
    if not given then
      if key ~= last then last, begins = key, of_key(key) end
      if turn == 'b' and not counts[key] then
        counts[key] = redis.call('ZLEXCOUNT', BLOCKED, '[' .. begins, '(' .. begins .. '\255')
      end
      if at and string.sub(at, 1, 1) == 'd' then supersede(id) end
      if turn == 's' then
        dead_letter_stopped(key, position, id, task, body, stream.mark .. entry[1])
      elseif counts[key] and counts[key] >= most then
        local text = string.format(
          'an earlier message with this key waits for a retry, and %d are blocked behind it (max_pending_per_key)', most
        )
        dead_letter(id, topic or task, body, order_letter('pending_full', text), stream.mark .. entry[1], key, position)
        ended(id, '', 0, id_ttl_ms, true)
        stopped_letters = stopped_letters + 1
      else
        if counts[key] then counts[key] = counts[key] + 1 end
        local member = begins .. position .. id
        blocked[n + 1], blocked[n + 2] = 0, member
        held[n + 1], held[n + 2] = member, expires .. '\n' .. task .. '\n' .. body
        index[n + 1], index[n + 2] = id, 'p' .. order_note(position, task, key)
        n = n + 2
      end
    end
  end
  if n > 0 then
    redis.call('ZADD', BLOCKED, unpack(blocked))
    redis.call('HSET', HELD, unpack(held))
    redis.call('HSET', INDEX, unpack(index))
  end
end

-- Returns the fresh entries that have the turn, or no key. Sets the others aside.
local function in_turn(fresh, stream)
  local keys, turns = {}, {}
  for _, entry in ipairs(fresh) do
    local fields = entry[2]
    if has_key(fields) then
      local key = fields[4]
      if turns[key] == nil then keys[#keys + 1], turns[key] = key, false end
    end
  end
  if #keys == 0 then return fresh end
  keyed = true
  for i, turn in ipairs(redis.call('HMGET', TURNS, unpack(keys))) do turns[keys[i]] = turn end
  local given, aside, new, skipped = {}, {}, {}, {}
  for _, entry in ipairs(fresh) do
    local fields = entry[2]
    if has_key(fields) then
      local key, id = fields[4], fields[6]
      local turn, o, words = turns[key], '', nil
      if #fields == 8 and fields[7] == 'o' and stream.mark == '' and #fields[8] == 40 and not string.find(fields[8], '%D') then
        o = fields[8]  -- the most common case: it was blocked before
      elseif #fields > 6 and not (#fields == 8 and fields[7] == 't') then
        words = said(fields)
        o = stream.mark == '' and words.o or ''
      end
      local position = o == '' and order_position(entry[1]) or o
      if catching_up and stream.mark ~= '' and was_ahead(position) then
        skipped[#skipped + 1] = entry[1]
      elseif not turn or has_turn(turn, position, id) and not (stream.mark ~= '' and lives(id, position)) then
        if catching_up and stream.mark == '' then give_ahead(position) end
        if words and words.x then
          entry[2] = as_claimed(words)
        else
          entry[2] = { 'd', fields[2] }
        end
        if not turn then
          turn = 'r' .. position .. id
          new[#new + 1], turns[key] = key, turn
          new[#new + 1] = turn
        end
        entry[1] = entry[1] .. '/' .. o .. '/' .. key
        given[#given + 1] = entry
      else
        entry.turn, entry.position = string.sub(turn, 1, 1), position
        aside[#aside + 1] = entry
      end
    else
      given[#given + 1] = entry
    end
  end
  if #new > 0 then redis.call('HSET', TURNS, unpack(new)) end
  if #aside > 0 then set_aside(stream, aside) end
  if #skipped > 0 then redis.call('XACK', stream.key, stream.group, unpack(skipped)) end
  return given
end
