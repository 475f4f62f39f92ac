-- Make a worker visible for a while. On the way, some names whose workers fell silent are taken off the list, so that it stays short
-- though nobody reads it.
-- KEYS: workers worker
-- ARGV: clock, id, info, ttl_ms
for _, id in ipairs(redis.call('SRANDMEMBER', WORKERS, 8)) do
  if redis.call('EXISTS', WORKER .. id) == 0 then redis.call('SREM', WORKERS, id) end
end
redis.call('SADD', WORKERS, ARGV[2])
redis.call('SET', WORKER .. ARGV[2], ARGV[3], 'PX', ARGV[4])
return 1
