-- Make a worker visible for a while.
-- KEYS: workers worker
-- ARGV: clock, id, info, ttl_ms
redis.call('SADD', WORKERS, ARGV[2])
redis.call('SET', WORKER .. ARGV[2], ARGV[3], 'PX', ARGV[4])
return 1
