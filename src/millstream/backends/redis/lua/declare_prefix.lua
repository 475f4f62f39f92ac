-- Add, remove or look up a group by prefix, and list the topics with this prefix.
-- KEYS: topics prefixes
-- USES: answers
-- ARGV: clock, 'group>prefix', command ('SADD', 'SREM' or 'SISMEMBER'), request ('' unless 'SREM'), prefix, number of the last
--   topic read
-- Returns {reply of the command, number of the last topic read now, whether there are more topics (0|1), names of topics with
-- this prefix and a higher number}.
-- A topic is listed before its prefixes are looked up. So either this call finds the topic, or the opening of the topic finds
-- the prefix.
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
