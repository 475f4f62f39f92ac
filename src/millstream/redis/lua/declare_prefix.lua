-- Have a group in every topic whose name begins so; or no longer; or look whether it is so.
-- KEYS: topics prefixes
-- ARGV: clock, 'group>prefix', 'SADD', 'SREM' or 'SISMEMBER'
-- Returns the names of all topics, and what that command answered. A topic is made known before it looks for its prefixes, so that
-- either this finds the topic or the topic finds this.
local answer = redis.call(ARGV[3], PREFIXES, ARGV[2])
return { redis.call('SMEMBERS', TOPICS), answer }
