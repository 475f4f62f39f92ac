-- KEYS: held due index
-- Holds a message until it is due. The caller stores its ordering key, if any, in `keyed`. True if the message is due before
-- all others, so that waiting consumers must wake earlier.
local function schedule(id, due_at, expires, body)
  local first = redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2]
  redis.call('HSET', HELD, id, expires .. '\n' .. body)
  redis.call('ZADD', DUE, due_at, id)
  redis.call('HSET', INDEX, id, 'h')
  return not first or due_at < tonumber(first)
end
