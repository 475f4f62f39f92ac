-- KEYS: meta
-- Which number of shards is noted at one of them; whoever says another may not publish there. True: it may.
local function one_of(shards)
  if shards == '0' or redis.call('HGET', META, 'shards') == shards then return true end
  return redis.call('HSETNX', META, 'shards', shards) == 1
end
