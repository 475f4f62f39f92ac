-- KEYS: index held due dead
-- A group may be given an event again: what was scheduled or dead under its id gives way to the newer delivery.
local function supersede(id)
  local at = redis.call('HGET', INDEX, id)
  if at == 'h' then
    redis.call('HDEL', HELD, id)
    redis.call('ZREM', DUE, id)
  elseif at and string.sub(at, 1, 1) == 'd' then
    remove_letter(string.sub(at, 2))
  end
end
