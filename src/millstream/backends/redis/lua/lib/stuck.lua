-- KEYS: held due blocked
-- Part of `around`: messages in `held` that are neither in `due` nor in `blocked`, because one of these was lost. Blocked
-- messages are added to `blocked` again. The due times of the others are unknown, so they are due now. Returns the number
-- found.
local function find_stuck()
  if redis.call('HLEN', HELD) <= redis.call('ZCARD', DUE) + redis.call('ZCARD', BLOCKED) then return 0 end
  local found = 0
  for _, id in ipairs(redis.call('HRANDFIELD', HELD, PAGE)) do
    local _, cut = string.find(id, '\0\0', 1, true)
    if cut and string.find(string.sub(id, cut + 1, cut + 40), '^' .. string.rep('%d', 40)) then
      found = found + redis.call('ZADD', BLOCKED, 0, id)
    elseif not redis.call('ZSCORE', DUE, id) then
      found = found + redis.call('ZADD', DUE, now, id)
    end
  end
  return found
end
