-- Store the number of shards, unless a number other than 0 is stored already.
-- KEYS: meta
-- ARGV: clock, shards, overwrite a stored number (0|1)
-- Returns the stored number.
local noted = redis.call('HGET', META, 'shards')
if noted and noted ~= '0' and ARGV[3] == '0' then return noted end
redis.call('HSET', META, 'shards', ARGV[2])
return ARGV[2]
