-- KEYS: dead index
-- Takes a dead letter off the list; its body, or nil if the job is not dead.
local function exhume(id)
  local at = redis.call('HGET', INDEX, id)
  if not at or string.sub(at, 1, 1) ~= 'd' then return nil end
  local entry = string.sub(at, 2)
  local letter = redis.call('XRANGE', DEAD, entry, entry)[1]
  redis.call('HDEL', INDEX, id)
  if not letter or redis.call('XDEL', DEAD, entry) == 0 then return nil end
  for i = 1, #letter[2], 2 do
    if letter[2][i] == 'd' then return letter[2][i + 1] end
  end
end
