-- KEYS: turns stopped blocked sweeps meta
-- Stopped keys that `turns` does not mark as stopped, because `turns` was lost.

-- Stops a key again if it is in `stopped`. The next claims make its blocked messages dead letters. False: the key is not
-- stopped.
local function stop_again(key)
  if redis.call('HEXISTS', STOPPED, key) == 0 then return false end
  redis.call('HSET', TURNS, key, 's')
  local begins = of_key(key)
  if #redis.call('ZRANGEBYLEX', BLOCKED, '[' .. begins, '(' .. begins .. '\255', 'LIMIT', 0, 1) > 0 then
    redis.call('RPUSH', SWEEPS, key)
    redis.call('HSET', META, 'sweep', 1)
  end
  return true
end

-- Part of `around`: checks some stopped keys, starting at `cursor`. Returns the number of keys that it stopped again, and the
-- next cursor or '' at the end.
local function find_stopped(cursor)
  local scanned, found = redis.call('HSCAN', STOPPED, cursor == '' and '0' or cursor, 'COUNT', 50), 0
  for i = 1, #scanned[2], 2 do
    local key = scanned[2][i]
    if redis.call('HGET', TURNS, key) ~= 's' and stop_again(key) then found = found + 1 end
  end
  return found, scanned[1] == '0' and '' or scanned[1]
end
