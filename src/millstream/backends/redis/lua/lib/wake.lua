-- KEYS: wake
-- One token wakes one idle worker; a second token would wake another for nothing.
local function wake()
  if redis.call('LLEN', WAKE) == 0 then redis.call('LPUSH', WAKE, 1) end
end
