-- Write the first lease of a consumer. Create the queue's consumer group if it is missing.
-- KEYS: stream leases meta
-- USES: clock lease_checks
-- ARGV: clock, group, consumer, lease_ms, field of `meta` which records that the consumer group existed, run_id,
--   max_consumers (0: no limit), ordering rules: stop (0|1), max_pending (both '': unchanged)
-- Returns {1 if the consumer group was created, else 0; 1 if it had existed before, else 0; number of entries; number of this
-- join}, or {-1} if max_consumers other consumers have a lease.
local max_consumers = tonumber(ARGV[7])
if max_consumers > 0 then
  check_leases(ARGV[6])
  local own = redis.call('ZSCORE', LEASES, ARGV[3]) and 1 or 0  -- 1 if this call was sent again
  if redis.call('ZCARD', LEASES) - own >= max_consumers then return { -1 } end
end
local made = redis.pcall('XGROUP', 'CREATE', STREAM, ARGV[2], '0', 'MKSTREAM')
-- No consumer has a lease: all have left, or `leases` was lost. In the latter case, `around` must find the messages that they
-- hold.
if made.err and redis.call('EXISTS', LEASES) == 0 then
  local whose = ARGV[5] == 'letters' and 'letters_' or ''
  redis.call('HSET', META, whose .. 'hurry', 1, whose .. 'at', '')
end
redis.call('ZADD', LEASES, now + ARGV[4], ARGV[3])
if tonumber(ARGV[4]) > tonumber(redis.call('HGET', META, 'longest') or '0') then
  redis.call('HSET', META, 'longest', ARGV[4])
end
if ARGV[8] ~= '' then redis.call('HSET', META, 'stop', ARGV[8], 'pending', ARGV[9]) end
local noted = redis.call('HSETNX', META, ARGV[5], 1)
return { made.err and 0 or 1, 1 - noted, redis.call('XLEN', STREAM), redis.call('HINCRBY', META, 'epoch', 1) }
