-- How many shards there are.
-- KEYS: meta
-- ARGV: clock, shards, anew (0|1)
-- Returns what is noted, or was now.
if ARGV[3] == '1' then redis.call('HSET', META, 'shards', ARGV[2]) else redis.call('HSETNX', META, 'shards', ARGV[2]) end
return redis.call('HGET', META, 'shards')
