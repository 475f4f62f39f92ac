-- Add a queue or topic to the list of names.
-- KEYS: queues topics prefixes
-- ARGV: clock, 'queues' or 'topics', name
-- Returns, for a topic, all groups by prefix, each as 'group>prefix'.
if ARGV[2] == 'queues' then
  redis.call('SADD', QUEUES, ARGV[3])
  return {}
end
if not redis.call('ZSCORE', TOPICS, ARGV[3]) then
  -- Each new topic gets a higher number, even after a flush. A caller that has read up to a number asks only for higher ones.
  local t, last = redis.call('TIME'), redis.call('ZREVRANGE', TOPICS, 0, 0, 'WITHSCORES')[2]
  local number = math.max(t[1] * 1000000 + t[2], last and last + 1 or 0)
  redis.call('ZADD', TOPICS, string.format('%.0f', number), ARGV[3])
end
return redis.call('SMEMBERS', PREFIXES)
