-- Write a consumer's first lease; make the queue's group if it is missing.
-- KEYS: stream leases meta
-- USES: clock
-- ARGV: clock, group, consumer, lease_ms, under which word it is noted that there is a group
-- Returns {1: the group is made, 0: it was there; 1: there was one before, 0: there was none; how many entries there are}.
local made = redis.pcall('XGROUP', 'CREATE', STREAM, ARGV[2], '0', 'MKSTREAM')
redis.call('ZADD', LEASES, now + ARGV[4], ARGV[3])
if tonumber(ARGV[4]) > tonumber(redis.call('HGET', META, 'longest') or '0') then
  redis.call('HSET', META, 'longest', ARGV[4])
end
local noted = redis.call('HSETNX', META, ARGV[5], 1)
return { made.err and 0 or 1, 1 - noted, redis.call('XLEN', STREAM) }
