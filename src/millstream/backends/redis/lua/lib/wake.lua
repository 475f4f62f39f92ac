-- KEYS: wake
-- Wakes one idle worker with a token. A second token would wake another worker for nothing.
local function wake()
  if redis.call('LLEN', WAKE) == 0 then redis.call('LPUSH', WAKE, 1) end
end
