-- KEYS: waiters
-- Sends a job's ending to the callers that wait for it. Channels are separated by newlines, which no name contains. If the
-- user may not PUBLISH, the job still ends, and callers find its ending by polling.
local function tell(id, ending)
  local channels = redis.call('HGET', WAITERS, id)
  if channels then
    redis.call('HDEL', WAITERS, id)
    for channel in string.gmatch(channels, '[^\n]+') do
      redis.pcall('PUBLISH', channel, WAITERS .. '\n' .. id .. '\n' .. ending)
    end
  end
end
