-- KEYS: ending given waiters
-- What every end of a job has in common, after the transition itself: keep the ending, start forgetting a caller-given id,
-- tell those who wait. Channels are joined by newlines, which no name contains. A user who may not publish ends jobs all the same:
-- those who wait also look now and then.
local function tell(id, ending)
  local channels = redis.call('HGET', WAITERS, id)
  if channels then
    redis.call('HDEL', WAITERS, id)
    for channel in string.gmatch(channels, '[^\n]+') do
      redis.pcall('PUBLISH', channel, WAITERS .. '\n' .. id .. '\n' .. ending)
    end
  end
end

local function ended(id, ending, ttl_ms, id_ttl_ms)
  if ending ~= '' and ttl_ms > 0 then redis.call('SET', ENDING .. id, ending, 'PX', ttl_ms) end
  if id_ttl_ms > 0 then redis.call('PEXPIRE', GIVEN .. id, id_ttl_ms) end
  tell(id, ending)
end
