-- KEYS: meta
-- Which number of shards is noted at one of them, or at the whole; whoever says another may not publish there. True: it may.
local function one_of(shards)
  local noted = redis.call('HGET', META, 'shards')
  if (noted or '0') == shards then return true end
  return shards ~= '0' and redis.call('HSETNX', META, 'shards', shards) == 1
end
