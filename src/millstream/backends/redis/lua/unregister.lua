-- Remove the registration of a worker.
-- KEYS: workers worker
-- ARGV: clock, id
redis.call('SREM', WORKERS, ARGV[2])
return redis.call('DEL', WORKER .. ARGV[2])
