-- Make a queue or topic known by name.
-- KEYS: queues topics prefixes
-- ARGV: clock, 'queues' or 'topics', name
-- Returns for a topic which groups there are by prefix: 'group>prefix' each.
if ARGV[2] == 'queues' then
  redis.call('SADD', QUEUES, ARGV[3])
  return {}
end
if not redis.call('ZSCORE', TOPICS, ARGV[3]) then
  -- Numbers rise with every topic, also after a flush: who has read up to one asks for what came later.
  local t, last = redis.call('TIME'), redis.call('ZREVRANGE', TOPICS, 0, 0, 'WITHSCORES')[2]
  local number = math.max(t[1] * 1000000 + t[2], last and last + 1 or 0)
  redis.call('ZADD', TOPICS, string.format('%.0f', number), ARGV[3])
end
return redis.call('SMEMBERS', PREFIXES)
