-- KEYS: stream index held turns blocked meta
-- Takes entries whose key's turn is another's out of their stream: blocked in their order, or dead. `turn` of each is whose it is.
local function set_aside(home, entries)
  local refs, ids, blocked, held, index, counts = {}, {}, {}, {}, {}, {}
  local turns, most = {}, nil
  for i, entry in ipairs(entries) do
    refs[i], ids[i] = entry[1], entry[2][6]
  end
  redis.call('XACK', home.key, home.group, unpack(refs))
  if home.mark == '' then redis.call('XDEL', STREAM, unpack(refs)) end
  local places = home.mark ~= '' and redis.call('HMGET', INDEX, unpack(ids)) or {}
  for i, entry in ipairs(entries) do
    local words, at = said(entry[2]), places[i]
    local id, key, place = words.i, words.k, words.o or place_of(entry[1])
    local state = string.sub(entry.turn, 1, 1)
    if at and string.sub(at, 1, 1) ~= 'd' then
      -- One that was given before, and is not settled yet: it is not given twice.
    elseif state == 's' then
      if at then supersede(id) end
      bar(key, place, id, words.t, words.d, home.mark .. entry[1])
    else
      if state == 'b' and not counts[key] then
        local begins = of_key(key)
        most = most or tonumber(redis.call('HGET', META, 'pending') or '1000')
        counts[key] = redis.call('ZLEXCOUNT', BLOCKED, '[' .. begins, '(' .. begins .. '\255')
      end
      if at then supersede(id) end
      if counts[key] and counts[key] >= most then
        local text = string.format('%d of its key wait behind one that is tried again: max_pending_per_key is reached', most)
        bury(id, topic or words.t or '', words.d, order_letter('pending_full', text), home.mark .. entry[1], key, place)
        ended(id, '', 0, id_ttl_ms)
      else
        if counts[key] then counts[key] = counts[key] + 1 end
        if state == 'r' then
          turns[#turns + 1] = key
          turns[#turns + 1] = 'q' .. string.sub(entry.turn, 2)
        end
        blocked[#blocked + 1] = 0
        blocked[#blocked + 1] = of_key(key) .. place .. id
        held[#held + 1] = id
        held[#held + 1] = (words.x or 0) .. '\n' .. words.d
        index[#index + 1] = id
        index[#index + 1] = 'p' .. order_note(place, words.t or '', key)
      end
    end
  end
  if #blocked > 0 then
    redis.call('ZADD', BLOCKED, unpack(blocked))
    redis.call('HSET', HELD, unpack(held))
    redis.call('HSET', INDEX, unpack(index))
  end
  if #turns > 0 then redis.call('HSET', TURNS, unpack(turns)) end
end

-- One that was claimed and is handed back, or taken over: an entry with its fields. True: it has the turn, or no key, and stays a
-- claim; otherwise it followed another, and is set aside.
local function keeps_claim(home, entry, consumer)
  if not has_key(entry[2]) then return true end
  local key, id = entry[2][4], entry[2][6]
  local noted = redis.call('HGET', TURNS, key)
  if not noted then noted = turn('r', said(entry[2]).o or place_of(entry[1]), consumer, id) end
  if holder_of(noted) == id then
    redis.call('HSET', TURNS, key, turn_of(noted, consumer))
    return true
  end
  entry.turn = noted
  set_aside(home, { entry })
  return false
end
