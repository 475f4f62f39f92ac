-- KEYS: dead index stats
-- Writes a dead letter. The body is the message as it would run again; with a key it has its position in an order.
local function dead_letter(id, task, body, letter, source, key, position)
  local fields = { 'i', id, 't', task, 'd', body, 'm', letter, 's', source, 'a', now }
  if key then
    fields[13], fields[14], fields[15], fields[16] = 'k', key, 'o', position
  end
  local entry = redis.call('XADD', DEAD, '*', unpack(fields))
  redis.call('HSET', INDEX, id, 'd' .. entry)
  redis.call('HINCRBY', STATS, 'dead', 1)
  -- One token for who handles a group's dead letters, if anybody does.
  if redis.call('EXISTS', DEAD .. ':leases') == 1 and redis.call('LLEN', DEAD .. ':wake') == 0 then
    redis.call('LPUSH', DEAD .. ':wake', 1)
  end
end
