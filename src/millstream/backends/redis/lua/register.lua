-- Register a worker for ttl_ms. Also removes a few workers whose registration has expired, so that the list stays short even
-- if nobody reads it.
-- KEYS: workers worker
-- ARGV: clock, id, registration, ttl_ms
-- Returns 1.
for _, id in ipairs(redis.call('SRANDMEMBER', WORKERS, 8)) do
  if redis.call('EXISTS', WORKER .. id) == 0 then redis.call('SREM', WORKERS, id) end
end
redis.call('SADD', WORKERS, ARGV[2])
redis.call('SET', WORKER .. ARGV[2], ARGV[3], 'PX', ARGV[4])
return 1
