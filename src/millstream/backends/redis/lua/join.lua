-- Write a consumer's first lease; make the queue's group if it is missing.
-- KEYS: stream leases meta
-- USES: clock lease_checks
-- ARGV: clock, group, consumer, lease_ms, under which word it is noted that there is a group, run_id, max_consumers (0: any number), what
-- holds for keys: whether they stop (0|1), how many may be pending ('', '': as it is)
-- Returns {1: the group is made, 0: it was there; 1: there was one before, 0: there was none; how many entries there are; its
-- number}, or {-1} if there are as many consumers as there may be.
local max_consumers = tonumber(ARGV[7])
if max_consumers > 0 then
  check_leases(ARGV[6])
  local own = redis.call('ZSCORE', LEASES, ARGV[3]) and 1 or 0  -- this is a call sent again
  if redis.call('ZCARD', LEASES) - own >= max_consumers then return { -1 } end
end
local made = redis.pcall('XGROUP', 'CREATE', STREAM, ARGV[2], '0', 'MKSTREAM')
-- Nobody has a lease: all have left, or the leases were lost, and some hold what is to be taken over.
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
