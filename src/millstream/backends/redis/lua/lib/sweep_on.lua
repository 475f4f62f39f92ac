-- KEYS: sweeps meta
-- Continues with the first key of `sweeps`. False: there may be more to do.
local function sweep_on()
  local key = redis.call('LINDEX', SWEEPS, 0)
  if not key then
    redis.call('HDEL', META, 'sweep')
  elseif sweep(key) then
    redis.call('LPOP', SWEEPS)
  end
  return not key
end
