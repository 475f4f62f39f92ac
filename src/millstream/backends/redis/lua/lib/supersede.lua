-- KEYS: index held due dead
-- Removes a scheduled or dead message with this id. A group may receive an event again, and the newer delivery wins.
local function supersede(id)
  local at = redis.call('HGET', INDEX, id)
  if at == 'h' then
    redis.call('HDEL', HELD, id)
    redis.call('ZREM', DUE, id)
  elseif at and string.sub(at, 1, 1) == 'd' then
    remove_letter(string.sub(at, 2))
  end
end
