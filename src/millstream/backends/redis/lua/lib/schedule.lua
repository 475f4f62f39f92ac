-- KEYS: held due index
-- Holds a message until it is due; its key, if it has one, is noted apart. True if it is due before everything else, so that sleepers must plan anew.
local function schedule(id, due_at, expires, body)
  local first = redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2]
  redis.call('HSET', HELD, id, expires .. '\n' .. body)
  redis.call('ZADD', DUE, due_at, id)
  redis.call('HSET', INDEX, id, 'h')
  return not first or due_at < tonumber(first)
end
