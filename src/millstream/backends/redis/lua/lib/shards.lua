-- KEYS: meta
-- Compares the number of shards that a publisher names with the number stored at this shard, or at the base queue or topic.
-- True: the publisher may publish. A shard without a stored number stores this one.
local function one_of(shards)
  local noted = redis.call('HGET', META, 'shards')
  if (noted or '0') == shards then return true end
  return shards ~= '0' and redis.call('HSETNX', META, 'shards', shards) == 1
end
