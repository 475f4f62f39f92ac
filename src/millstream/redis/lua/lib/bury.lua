-- KEYS: dead index stats
-- Writes a dead letter. The body is the message as it would run again.
local function bury(id, task, body, letter, source)
  local entry = redis.call('XADD', DEAD, '*', 'i', id, 't', task, 'd', body, 'm', letter, 's', source, 'a', now)
  redis.call('HSET', INDEX, id, 'd' .. entry)
  redis.call('HINCRBY', STATS, 'dead', 1)
  -- One token for who handles a group's dead letters, if anybody does.
  if redis.call('EXISTS', DEAD .. ':leases') == 1 and redis.call('LLEN', DEAD .. ':wake') == 0 then
    redis.call('LPUSH', DEAD .. ':wake', 1)
  end
end
