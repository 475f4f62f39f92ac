-- How many shards there are.
-- KEYS: meta
-- ARGV: clock, shards, anew (0|1)
-- Returns what is noted, or was now.
local noted = redis.call('HGET', META, 'shards')
if noted and noted ~= '0' and ARGV[3] == '0' then return noted end
redis.call('HSET', META, 'shards', ARGV[2])
return ARGV[2]
