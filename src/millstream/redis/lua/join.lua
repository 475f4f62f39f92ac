-- Write a consumer's first lease; make the queue's group if it is missing.
-- KEYS: stream leases meta
-- USES: clock
-- ARGV: clock, group, consumer, lease_ms
-- Returns {1: the group is made, 0: it was there, how many entries there are}.
local made = redis.pcall('XGROUP', 'CREATE', STREAM, ARGV[2], '0', 'MKSTREAM')
redis.call('ZADD', LEASES, now + ARGV[4], ARGV[3])
if tonumber(ARGV[4]) > tonumber(redis.call('HGET', META, 'longest') or '0') then
  redis.call('HSET', META, 'longest', ARGV[4])
end
return { made.err and 0 or 1, redis.call('XLEN', STREAM) }
