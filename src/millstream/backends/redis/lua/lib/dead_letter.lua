-- KEYS: dead index stats
-- Writes a dead letter. `body` is the message as it would run again. With a key, the letter also has the position of the
-- message.
local function dead_letter(id, task, body, letter, source, key, position)
  local fields = { 'i', id, 't', task, 'd', body, 'm', letter, 's', source, 'a', now }
  if key then
    fields[13], fields[14], fields[15], fields[16] = 'k', key, 'o', position
  end
  local entry = redis.call('XADD', DEAD, '*', unpack(fields))
  redis.call('HSET', INDEX, id, 'd' .. entry)
  redis.call('HINCRBY', STATS, 'dead', 1)
  -- Wake one handler of the group's dead letters, if it has any.
  if redis.call('EXISTS', DEAD .. ':leases') == 1 and redis.call('LLEN', DEAD .. ':wake') == 0 then
    redis.call('LPUSH', DEAD .. ':wake', 1)
  end
end
