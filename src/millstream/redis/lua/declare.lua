-- Make a queue or topic known by name.
-- KEYS: queues topics
-- ARGV: clock, 'queues' or 'topics', name
return redis.call('SADD', ARGV[2] == 'topics' and TOPICS or QUEUES, ARGV[3])
