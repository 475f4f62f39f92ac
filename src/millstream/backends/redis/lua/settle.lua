-- End deliveries. The fence comes first: a consumer without its lease changes nothing.
-- KEYS: stream leases index stats meta
-- USES: ending streams
-- OF A GROUP: log_stream supersede
-- ARGV: clock, group, consumer, id_ttl_ms, dead_max_count, dead_oldest_ms (age), plain, kept, kept_ttl_ms, logged, in order
--   plain + kept refs, plain + kept ids, kept endings: jobs that are done, without and with an ending to keep
--   logged entries of the log that are done
--   refs, then ids, of those that are done, without an ending to keep, and have a key
--   then nine each: kind (0 done, 1 retry, 2 dead, 3 expired), ref, id, ending, ttl_ms, given (0|1), body, delay_ms or task,
--   expires or letter
-- Returns how many were settled now, or -1 if the consumer has no lease.
local group, consumer = ARGV[2], ARGV[3]
if not redis.call('ZSCORE', LEASES, consumer) then return -1 end
local plain, kept, kept_ttl_ms = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local n, at, logged, ordered = plain + kept, 11, tonumber(ARGV[10]), tonumber(ARGV[11])
local settled, done = 0, 0
local watched = redis.call('EXISTS', WAITERS) == 1

if n > 0 then
  local refs, ids, before = {}, {}, {}
  for i = 1, n do
    refs[i] = ARGV[at + i]
    ids[i] = ARGV[at + n + i]
  end
  local acked = redis.call('XACK', STREAM, group, unpack(refs))
  redis.call('XDEL', STREAM, unpack(refs))
  if acked == n and not in_group then
    redis.call('HDEL', INDEX, unpack(ids))
  else
    -- Some were settled before (this is a call sent again): how they ended stands, and an id that is back under another
    -- entry is not ours to remove. (In a group one may be so anyway: an event that it was given again.)
    for i = 1, n do
      if redis.call('HGET', INDEX, ids[i]) == refs[i] then
        redis.call('HDEL', INDEX, ids[i])
      else
        before[i] = acked < n
      end
    end
  end
  at = at + 2 * n
  for i = 1, kept do
    if not before[plain + i] then redis.call('SET', ENDING .. ids[plain + i], ARGV[at + i], 'PX', kept_ttl_ms) end
  end
  if watched then
    for i = 1, n do
      if not before[i] then tell(ids[i], i > plain and ARGV[at + i - plain] or '') end
    end
  end
  at = at + kept
  done = acked
end

if logged > 0 then
  done = done + redis.call('XACK', streams[2].key, streams[2].group, unpack(ARGV, at + 1, at + logged))
  at = at + logged
end

if at == #ARGV then  -- the most common: all are done, and none has a key
  if done > 0 then redis.call('HINCRBY', STATS, 'done', done) end
  return done
end
-- THEN USES: clock wake schedule dead_letter members retire keyed turns stopping
id_ttl_ms = tonumber(ARGV[4])

-- Those who had the turn of their keys pass it on.
local passed = 0
local function pass(positions, keys)
  local turns, whose, once = redis.call('HMGET', TURNS, unpack(keys)), {}, {}
  for i, key in ipairs(keys) do
    if turns[i] and not once[key] and string.sub(turns[i], 2, 41) == positions[i] then
      whose[#whose + 1], once[key] = key, true
    end
  end
  if #whose > 0 and redis.call('EXISTS', BLOCKED) == 1 then
    passed = passed + pass_turns(whose)
  elseif #whose > 0 then
    redis.call('HDEL', TURNS, unpack(whose))
  end
end

if ordered > 0 then
  local refs, ids, keys, positions, marks, acked = { {}, {} }, {}, {}, {}, {}, 0
  for i = 1, ordered do
    local ref = ARGV[at + i]
    local stream, entry = stream_of(ref)
    local to = refs[stream.mark == '' and 1 or 2]
    to[#to + 1], marks[i] = entry, stream.mark == '' and entry or ''
    ids[i], positions[i], keys[i] = ARGV[at + ordered + i], order_of(ref)
  end
  at = at + 2 * ordered
  for h, stream in ipairs(streams) do
    if #refs[h] > 0 then acked = acked + redis.call('XACK', stream.key, stream.group, unpack(refs[h])) end
  end
  if #refs[1] > 0 then redis.call('XDEL', STREAM, unpack(refs[1])) end
  if #refs[1] > 0 or acked < ordered then
    -- Some were settled before (this is a call sent again): who lives on, or ended in another way, passes nothing on.
    local found, gone = redis.call('HMGET', INDEX, unpack(ids)), {}
    for i = ordered, 1, -1 do
      local its = found[i] and found[i] == marks[i]
      if its then gone[#gone + 1] = ids[i] end
      if acked < ordered and not its and (marks[i] ~= '' or found[i] and string.sub(found[i], 1, 1) ~= 'd') then
        table.remove(ids, i)
        table.remove(keys, i)
        table.remove(positions, i)
      end
    end
    if #gone > 0 then redis.call('HDEL', INDEX, unpack(gone)) end
  end
  if #keys > 0 then pass(positions, keys) end
  if watched then
    for _, id in ipairs(ids) do tell(id, '') end
  end
  done = done + acked
end

local retried, expired, dead_lettered, earlier = 0, 0, 0, false
for i = at + 1, #ARGV, 9 do
  local kind, ref, id, ending, ttl_ms = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  local forget_ms = ARGV[i + 5] == '1' and id_ttl_ms or 0
  local stream, entry = stream_of(ref)
  local position, key = order_of(ref)
  if redis.call('XACK', stream.key, stream.group, entry) == 1 then
    if stream.mark == '' then redis.call('XDEL', STREAM, entry) end
    if in_group and kind ~= '0' and kind ~= '3' then supersede(id) end
    if kind == '1' then
      earlier = schedule(id, now + ARGV[i + 7], ARGV[i + 8], ARGV[i + 6]) or earlier
      if key then
        redis.call('HSET', KEYED, id, order_note(position, '', key))
        local turn = redis.call('HGET', TURNS, key)
        if turn and string.sub(turn, 2, 41) == position then give_turn(key, 'b', position, id) end
      end
      retried = retried + 1
    elseif kind == '2' then
      dead_letter(id, ARGV[i + 7], ARGV[i + 6], ARGV[i + 8], stream.mark .. entry, key, position)
      ended(id, ending, ttl_ms, forget_ms, true)
      if key and redis.call('HGET', META, 'stop') == '1' then stop_key(key, position, id) elseif key then pass({ position }, { key }) end
      dead_lettered = dead_lettered + 1
    else
      if not in_group or redis.call('HGET', INDEX, id) == entry then redis.call('HDEL', INDEX, id) end
      ended(id, ending, ttl_ms, forget_ms)
      if key then pass({ position }, { key }) end
      if kind == '0' then done = done + 1 else expired = expired + 1 end
    end
  end
end

if earlier or passed > 0 then wake() end
if dead_lettered > 0 then retire(tonumber(ARGV[5]), now - ARGV[6], dead_lettered + stopped_letters) end
if done > 0 then redis.call('HINCRBY', STATS, 'done', done) end
if retried > 0 then redis.call('HINCRBY', STATS, 'retried', retried) end
if expired > 0 then redis.call('HINCRBY', STATS, 'expired', expired) end
return done + retried + expired + dead_lettered
