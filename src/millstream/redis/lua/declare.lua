-- Make a queue known by name.
-- KEYS: queues
-- ARGV: clock, queue
return redis.call('SADD', QUEUES, ARGV[2])
