-- Have a group in every topic whose name begins so; or no longer; or look whether it is so.
-- KEYS: topics prefixes
-- USES: answers
-- ARGV: clock, 'group>prefix', 'SADD', 'SREM' or 'SISMEMBER', request ('' unless it is 'SREM')
-- Returns the names of all topics, and what that command answered. A topic is made known before it looks for its prefixes, so that
-- either this finds the topic or the topic finds this.
local changed = answered(ARGV[4]) and 1 or redis.call(ARGV[3], PREFIXES, ARGV[2])
if changed == 1 then answer(ARGV[4], '1') end
return { redis.call('SMEMBERS', TOPICS), changed }
