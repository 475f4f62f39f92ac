-- Take messages: what was released or left behind by lapsed consumers first, then what is ready.
-- On the way: promote what is due, look at overdue leases.
-- KEYS: stream leases meta due held lapsed stats
-- USES: clock wake streams lease_checks
-- OF A GROUP: log_stream
-- ARGV: clock, group, consumer, count, alone (0|1), suspect_after, run_id, released, suspects (names), lost_letter
-- ('': what is claimed are dead letters, and those that are gone were replayed, purged or too old), id_ttl_ms,
-- dead_max_count, dead_oldest_ms (age)
-- Returns {now, next_due_ms or -1, flags (1 paused, 2 suspects wait, 4 some have keys, 8 look `around`), entries, crashes of each, plain,
-- ms until leases should be looked at again or -1, plain entries of the log}, or {-1} if the consumer has no lease. Plain: refs
-- and bodies by turns, of ready entries that have a body and nothing else. (Measured: a third less server time than entries.)
local group, consumer, left, alone = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local suspect_after, run_id, released, suspects = tonumber(ARGV[6]), ARGV[7], ARGV[8], ARGV[9]
local of_letters = ARGV[10] == ''
if not redis.call('ZSCORE', LEASES, consumer) then return { -1 } end
local meta, look = check_leases(run_id)
if not redis.call('ZSCORE', LEASES, consumer) then return { -1 } end

-- It is time to look `around` every two seconds; at once if a turn may have gone with its message, or while there is more to find.
local around, hurry, flags = meta[9], meta[10], 0
if of_letters then around, hurry = unpack(redis.call('HMGET', META, 'letters_around', 'letters_hurry')) end
local since = now - (around or 0)
if hurry or since < 0 or since >= 2000 then
  redis.call('HSET', META, of_letters and 'letters_around' or 'around', now)
  flags = 8
end
local paused, first_due = meta[1] == '1', tonumber(redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2])
local due = first_due and first_due <= now

-- Next deadline, for who sleeps: in how many ms leases should be looked at.
local function next_check()
  local deadline = redis.call('ZRANGEBYSCORE', LEASES, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return deadline and deadline - now or -1
end

-- The most common claim: of a queue where nothing is due or lapsed. What is read is the answer if all of it is plain; else it is
-- handed on to the rest of this script.
local fresh
if left > 0 and not (paused or alone or due or in_group or of_letters or meta[8])
  and redis.call('EXISTS', LAPSED) == 0 then
  local found = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', left, 'STREAMS', STREAM, '>')
  local flat, plain = {}, true
  fresh = found and found[1][2] or {}
  for i, entry in ipairs(fresh) do
    local fields = entry[2]
    if #fields ~= 2 or fields[1] ~= 'd' then
      plain = false
      break
    end
    flat[2 * i - 1], flat[2 * i] = entry[1], fields[2]
  end
  if plain then
    if #fresh == left then wake() end
    if look < 0 and #fresh < left then look = next_check() end
    return { now, first_due and first_due - now or -1, flags, {}, {}, flat, look, {} }
  end
end
-- THEN USES: append ending dead_letter members keyed turns stopping retire
-- THEN OF A GROUP: groups group_positions log order notes delayed trim supersede ahead
id_ttl_ms = tonumber(ARGV[11])

if due then
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, 200)) do
    make_ready(id)
    redis.call('ZREM', DUE, id)
  end
end
local unfinished = meta[8] and not of_letters and not sweep_on()  -- true: the next claim should come at once

local trimmed, catching_up = true, false
if in_group then
  redis.call('XPENDING', LOG, streams[2].group, '-', '+', 1)  -- NOGROUP, before anything is taken, if its position in the log is gone
  publish_due()
  trimmed = trim()
  catching_up = meta[11] and catches_up(meta[11])
end

local taken, crashes, plain, keyed, strayed = {}, {}, {}, false, false
local asked = left
if alone then left = math.min(left, 1) end

-- Takes over up to `left` entries of one name's pending list in one stream; true when the list is empty. One claim goes to a bounded
-- effort for all names: an entry that is set aside counts as one, one that is gone or a name as four.
local effort = 400
local function take_over(name, stream)
  while left > 0 and effort > 0 do
    local pending = redis.call('XPENDING', stream.key, stream.group, '-', '+', math.min(left, 100), name)
    if #pending == 0 then return true end
    local wanted, aside = {}, {}
    for _, p in ipairs(pending) do
      if not alone and p[4] >= suspect_after then
        aside[#aside + 1] = p[1]
      else
        wanted[#wanted + 1] = p[1]
        crashes[stream.mark .. p[1]] = p[4]
      end
    end
    if #aside > 0 then
      aside[#aside + 1] = 'JUSTID'
      redis.call('XCLAIM', stream.key, stream.group, suspects, 0, unpack(aside))
      redis.call('SADD', LAPSED, suspects)
      effort = effort - #aside
    end
    if #wanted > 0 then
      local got = {}
      for _, entry in ipairs(redis.call('XCLAIM', stream.key, stream.group, consumer, 0, unpack(wanted))) do
        got[entry[1]] = true
        local ref, words = stream.mark .. entry[1], has_key(entry[2]) and said(entry[2])
        if catching_up and words and stream.mark ~= '' and not alone and comes_again(order_position(entry[1])) then
          take_out_of_log(entry[1], words)
          crashes[ref], effort = nil, effort - 4
        else
          if words then
            if catching_up and stream.mark == '' then give_ahead(words.o or order_position(entry[1])) end
            entry[2], keyed = as_claimed(words), true
            crashes[keyed_ref(ref, words)] = crashes[ref]
            ref = keyed_ref(ref, words)
          end
          entry[1] = ref
          taken[#taken + 1] = entry
          left = left - 1
        end
      end
      for _, id in ipairs(wanted) do
        if not got[id] then  -- its body was trimmed by someone else: never passed over in silence, unless it was a dead letter
          redis.call('XACK', stream.key, stream.group, id)
          effort = effort - 4
          if not of_letters then
            dead_letter('lost-' .. id, '', '', ARGV[10], id)
            strayed, stopped_letters = true, stopped_letters + 1
          end
        end
      end
    end
  end
  return #redis.call('XPENDING', stream.key, stream.group, '-', '+', 1, name) == 0
end

local lapsed = left > 0 and not paused and redis.call('SCARD', LAPSED) or 0
if lapsed > 0 then
  -- In order: '!released' sorts before every consumer. Of many some, by chance.
  local names = lapsed <= 64 and redis.call('SMEMBERS', LAPSED) or redis.call('SRANDMEMBER', LAPSED, 64)
  for _, name in ipairs(lapsed > 64 and { released, suspects } or {}) do
    if redis.call('SISMEMBER', LAPSED, name) == 1 then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    if left > 0 and effort > 0 and (name == suspects) == alone then
      effort = effort - 4
      local empty = true
      for _, stream in ipairs(streams) do empty = take_over(name, stream) and empty end
      if empty then
        redis.call('SREM', LAPSED, name)
        for _, stream in ipairs(streams) do redis.call('XGROUP', 'DELCONSUMER', stream.key, stream.group, name) end
      end
    end
  end
  if left > 0 and not alone and (effort <= 0 or lapsed > 64) then unfinished = true end
end

local function put_as_entries(flat, mark)
  for k = 1, #flat, 2 do
    taken[#taken + 1] = { mark .. flat[k], { 'd', flat[k + 1] } }
    crashes[mark .. flat[k]] = 0
  end
end

-- All plain: refs and bodies by turns. One that expires, or a foreign one: all go as entries, in their order, and those before.
local function put(fresh, mark, before)
  local flat = {}
  for i, entry in ipairs(fresh) do
    local fields = entry[2]
    if #fields ~= 2 or fields[1] ~= 'd' then
      put_as_entries(plain, '')
      put_as_entries(before, mark)
      plain, before = {}, {}
      for _, each in ipairs(fresh) do
        each[1] = mark .. each[1]
        taken[#taken + 1] = each
        crashes[each[1]] = 0
      end
      flat = {}
      break
    end
    flat[2 * i - 1], flat[2 * i] = entry[1], fields[2]
  end
  left = left - #fresh
  if #before == 0 then return flat end
  for _, part in ipairs(flat) do before[#before + 1] = part end
  return before
end

-- A group that was moved back may read what it has just taken over: that is given once, and its crashes still count.
local function new_in_log(fresh)
  if #taken == 0 then return fresh end
  local new = {}
  for _, entry in ipairs(fresh) do
    local crashed = crashes['L' .. entry[1]]
    if crashed then
      redis.call('XCLAIM', LOG, streams[2].group, consumer, 0, entry[1], 'RETRYCOUNT', crashed + 1, 'JUSTID')
    else
      new[#new + 1] = entry
    end
  end
  return new
end

-- Whether an event at this position, which was read in the log, waits already, or is in the group's own stream: a group that was moved
-- back is not given twice what is not settled.
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

-- Those whose key's turn is another's: blocked in their order, or dead. (Hot: with few keys nearly every event comes here once.)
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
    if known[i] or stopped_letters > 0 and stream.mark ~= '' then given, at = lives(id, position) end  -- a death here writes to the index
    if not given then
      if key ~= last then last, begins = key, of_key(key) end
      if turn == 'b' and not counts[key] then
        counts[key] = redis.call('ZLEXCOUNT', BLOCKED, '[' .. begins, '(' .. begins .. '\255')
      end
      if at and string.sub(at, 1, 1) == 'd' then supersede(id) end
      if turn == 's' then
        dead_letter_stopped(key, position, id, task, body, stream.mark .. entry[1])
      elseif counts[key] and counts[key] >= most then
        local text = string.format('%d of its key wait behind one that is tried again: max_pending_per_key is reached', most)
        dead_letter(id, topic or task, body, order_letter('pending_full', text), stream.mark .. entry[1], key, position)
        ended(id, '', 0, id_ttl_ms)
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

-- Of fresh entries those whose turn it is, or that have no key; the others are set aside.
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
        o = fields[8]  -- it waited for its turn: the most common
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

-- Reads on behind what is set aside while there is nothing to give, but not for ever.
local READ_ON, ROUNDS = 100, 50
local function read(stream)
  local flat, aside, rounds, took_over = {}, 0, 0, #taken > 0
  repeat
    rounds = rounds + 1
    local read = fresh  -- in the beginning of this script
    fresh = nil
    if not read then
      local found = redis.call('XREADGROUP', 'GROUP', stream.group, consumer, 'COUNT', left, 'STREAMS', stream.key, '>')
      if not found then return flat end
      read = found[1][2]
    end
    local new = stream.mark ~= '' and new_in_log(read) or read
    local given = in_turn(new, stream)
    aside = aside + #new - #given
    left = left - (#read - #new)
    flat = put(given, stream.mark, flat)
    -- What it has taken over it knows only now, so all is read now that a group which was moved back may be given again.
    local enough = left < asked and not took_over
  until left == 0 or enough or #new == #given or aside >= READ_ON or rounds == ROUNDS
  if left > 0 and aside > 0 then unfinished = true end
  return flat, left > 0 and aside > 0
end

local logged = {}
if left > 0 and not paused and not alone then
  local unread
  plain, unread = read(streams[1])
  if in_group and left > 0 and not unread then logged = read(streams[2]) end  -- what is its own comes before what is new
end

flags = flags + (paused and 1 or 0) + (keyed and 4 or 0)
if strayed and hurry ~= '1' then  -- else it is yet to come to the turns
  redis.call('HSET', META, 'hurry', 2, 'at', '')
  if flags < 8 then flags = flags + 8 end
end
if redis.call('SISMEMBER', LAPSED, suspects) == 1 then
  local waiting = 0
  for _, stream in ipairs(streams) do waiting = waiting + #redis.call('XPENDING', stream.key, stream.group, '-', '+', 1, suspects) end
  if waiting > 0 then
    flags = flags + 2
  else
    redis.call('SREM', LAPSED, suspects)
  end
end
-- Asked-for and got: there may be more, so another idle worker should look.
if asked > 0 and left == 0 and not alone then wake() end

local counts = {}
for i, entry in ipairs(taken) do counts[i] = crashes[entry[1]] end
if look < 0 and left > 0 then look = next_check() end
local next_due = tonumber(redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2])
if in_group then
  local publishes = tonumber(redis.call('ZRANGE', LOG_DUE, 0, 0, 'WITHSCORES')[2])
  if publishes and (not next_due or publishes < next_due) then next_due = publishes end
  if not trimmed then unfinished = true end
end
if unfinished then next_due = now end  -- nobody sleeps before the rest is removed, read or found
if stopped_letters > 0 then retire(tonumber(ARGV[12]), now - ARGV[13], stopped_letters) end
return { now, next_due and math.max(0, next_due - now) or -1, flags, taken, counts, plain, look, logged }
