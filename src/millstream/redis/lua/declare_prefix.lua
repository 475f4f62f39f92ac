-- Have a group in every topic whose name begins so; or no longer.
-- KEYS: topics prefixes
-- ARGV: clock, 'group>prefix', 1 or 0
-- Returns the names of all topics, and whether that was news. A topic is made known before it looks for its prefixes, so that
-- either this finds the topic or the topic finds this.
local news = redis.call(ARGV[3] == '1' and 'SADD' or 'SREM', PREFIXES, ARGV[2])
return { redis.call('SMEMBERS', TOPICS), news }
