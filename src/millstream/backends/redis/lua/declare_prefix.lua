-- Have a group in every topic whose name begins so; or no longer; or look whether it is so.
-- KEYS: topics prefixes
-- USES: answers
-- ARGV: clock, 'group>prefix', 'SADD', 'SREM' or 'SISMEMBER', request ('' unless it is 'SREM'), prefix, number
-- Returns {what that command answered, the number up to which topics were looked at, whether there are more (0|1), the names that begin so
-- and whose number is larger}. A topic is made known before it looks for its prefixes, so that either this finds the topic or the
-- topic finds this.
local LOOKS = 1000
local changed = answered(ARGV[4]) and 1 or redis.call(ARGV[3], PREFIXES, ARGV[2])
if changed == 1 then answer(ARGV[4], '1') end
local prefix, last, names = ARGV[5], ARGV[6], {}
local found = redis.call('ZRANGEBYSCORE', TOPICS, '(' .. last, '+inf', 'WITHSCORES', 'LIMIT', 0, LOOKS)
for i = 1, #found, 2 do
  if string.sub(found[i], 1, #prefix) == prefix then names[#names + 1] = found[i] end
  last = found[i + 1]
end
return { changed, last, #found == 2 * LOOKS and 1 or 0, names }
