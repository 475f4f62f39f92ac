-- Make a queue or topic known by name.
-- KEYS: queues topics prefixes
-- ARGV: clock, 'queues' or 'topics', name
-- Returns for a topic which groups there are by prefix: 'group>prefix' each.
if ARGV[2] == 'queues' then
  redis.call('SADD', QUEUES, ARGV[3])
  return {}
end
redis.call('SADD', TOPICS, ARGV[3])
return redis.call('SMEMBERS', PREFIXES)
