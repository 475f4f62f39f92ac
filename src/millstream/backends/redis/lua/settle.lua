-- Settle deliveries. The lease is checked first: a consumer without a lease changes nothing.
-- KEYS: stream leases index stats ending
-- USES: tell
-- OF A GROUP: log_group
-- ARGV: clock, group, consumer, id_ttl_ms, dead_max_count, dead_oldest_ms (age), plain, kept, kept_ttl_ms, logged, keyed, doubtful,
--   then
--   plain + kept refs, plain + kept ids, kept endings: done jobs, without (plain) and with (kept) an ending to store
--   logged entries: done events in the log
--   keyed refs, keyed ids: done messages with a key, without an ending to store
--   nine for each other delivery: kind (done, retry, dead, expired), ref, id, ending, ttl_ms, given id (0|1), body,
--   delay_ms or task, expires or letter. If `doubtful` is 1, there are only these, and each is settled only if its entry still
--   is the message with this id
-- Returns the number of deliveries that this call settled, or -1 if the consumer has no lease.
local group, consumer = ARGV[2], ARGV[3]
if not redis.call('ZSCORE', LEASES, consumer) then return -1 end
local plain, kept, kept_ttl_ms = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local logged, keyed, doubtful = tonumber(ARGV[10]), tonumber(ARGV[11]), ARGV[12] == '1'
local n, at, done = plain + kept, 12, 0  -- `at`: index of the last argument that was read
local watched = redis.call('EXISTS', WAITERS) == 1

if n > 0 then
  local refs, ids, before = {}, {}, {}
  for i = 1, n do
    refs[i] = ARGV[at + i]
    ids[i] = ARGV[at + n + i]
  end
  at = at + 2 * n
  done = redis.call('XACK', STREAM, group, unpack(refs))
  redis.call('XDEL', STREAM, unpack(refs))
  if done == n and not in_group then
    redis.call('HDEL', INDEX, unpack(ids))
  else
    -- This call was sent again, and an earlier copy settled some deliveries. Their endings are not overwritten, and an id that
    -- has another entry by now stays in the index. (In a group, an id may have another entry in any call, because a group can
    -- receive an event again.)
    for i = 1, n do
      if redis.call('HGET', INDEX, ids[i]) == refs[i] then
        redis.call('HDEL', INDEX, ids[i])
      else
        before[i] = done < n
      end
    end
  end
  for i = 1, kept do
    if not before[plain + i] then redis.call('SET', ENDING .. ids[plain + i], ARGV[at + i], 'PX', kept_ttl_ms) end
  end
  if watched then
    for i = 1, n do
      if not before[i] then tell(ids[i], i > plain and ARGV[at + i - plain] or '') end
    end
  end
  at = at + kept
end

if logged > 0 then
  done = done + redis.call('XACK', LOG, log_group, unpack(ARGV, at + 1, at + logged))
  at = at + logged
end

if at == #ARGV then  -- the most common case: all are done, and none has a key
  if done > 0 then redis.call('HINCRBY', STATS, 'done', done) end
  return done
end
local id_ttl_ms, dead_max_count, dead_oldest_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
-- THEN USES: clock wake streams ending schedule dead_letter members handling retire keyed turns stopping
-- THEN OF A GROUP: log_stream supersede
-- THEN USES: pass_on settle_keyed settle_one same_message

local retried, dead_lettered, expired, passed, wakes = 0, 0, 0, 0, false
if keyed > 0 then
  local acked
  acked, passed = settle_keyed(at, keyed)
  done = done + acked
  at = at + 2 * keyed
end

for i = at + 1, #ARGV, 9 do
  local kind, ref, id, ending, ttl_ms = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  local forget_ms, body = ARGV[i + 5] == '1' and id_ttl_ms or 0, ARGV[i + 6]
  local stream, entry = stream_of(ref)
  if (not doubtful or same_message(stream, entry, id)) and redis.call('XACK', stream.key, stream.group, entry) == 1 then
    if stream.mark == '' then redis.call('XDEL', STREAM, entry) end
    local position, key = order_of(ref)
    if kind == 'retry' then
      local delay_ms, expires = ARGV[i + 7], ARGV[i + 8]
      wakes = retry(id, body, delay_ms, expires, key, position) or wakes
      retried = retried + 1
    else
      if kind == 'dead' then
        local task, letter = ARGV[i + 7], ARGV[i + 8]
        passed = passed + die(id, task, body, letter, stream.mark .. entry, key, position)
        dead_lettered = dead_lettered + 1
      else
        passed = passed + finish(id, entry, key, position)
        if kind == 'done' then done = done + 1 else expired = expired + 1 end
      end
      ended(id, ending, ttl_ms, forget_ms, kind == 'dead')
    end
  end
end

if wakes or passed > 0 then wake() end
if dead_lettered > 0 then retire(dead_max_count, now - dead_oldest_ms, dead_lettered + stopped_letters) end
if done > 0 then redis.call('HINCRBY', STATS, 'done', done) end
if retried > 0 then redis.call('HINCRBY', STATS, 'retried', retried) end
if expired > 0 then redis.call('HINCRBY', STATS, 'expired', expired) end
return done + retried + dead_lettered + expired
