-- KEYS: dead index stats
-- Writes a dead letter. The body is the message as it would run again.
local function bury(id, task, body, letter, source)
  local entry = redis.call('XADD', DEAD, '*', 'i', id, 't', task, 'd', body, 'm', letter, 's', source, 'a', now)
  redis.call('HSET', INDEX, id, 'd' .. entry)
  redis.call('HINCRBY', STATS, 'dead', 1)
end
