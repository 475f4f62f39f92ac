-- Remove the registration of a worker.
-- KEYS: workers worker
-- ARGV: clock, id
-- Returns 1 if the worker was registered, else 0.
redis.call('SREM', WORKERS, ARGV[2])
return redis.call('DEL', WORKER .. ARGV[2])
