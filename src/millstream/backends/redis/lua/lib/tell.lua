-- KEYS: waiters
-- Tells those who wait for a job how it ended. Channels are joined by newlines, which no name contains. A user who may not publish
-- ends jobs all the same: those who wait also look now and then.
local function tell(id, ending)
  local channels = redis.call('HGET', WAITERS, id)
  if channels then
    redis.call('HDEL', WAITERS, id)
    for channel in string.gmatch(channels, '[^\n]+') do
      redis.pcall('PUBLISH', channel, WAITERS .. '\n' .. id .. '\n' .. ending)
    end
  end
end
