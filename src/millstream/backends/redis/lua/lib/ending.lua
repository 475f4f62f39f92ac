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

-- A given id whose own time is 0 is free now. For a minute it is noted, behind a newline, which request had it: sent again after a
-- lost reply, that is told so and creates nothing.
local FREED_MS = 60000
local function free_id(id, known) redis.call('SET', GIVEN .. id, '\n' .. known, 'PX', FREED_MS) end

-- `id_ttl_ms` 0: the id was not given by a caller. One that is dead keeps its id until it is purged.
local function leave_behind(id, ending, ttl_ms, id_ttl_ms, dead)
  if ending ~= '' and ttl_ms > 0 then redis.call('SET', ENDING .. id, ending, 'PX', ttl_ms) end
  local known = id_ttl_ms > 0 and redis.call('GET', GIVEN .. id)
  if known then
    local own = tonumber(string.match(known, '\nt(%d+)$'))
    if own == 0 and not dead then
      free_id(id, known)
    else
      redis.call('PEXPIRE', GIVEN .. id, own and own > 0 and own or id_ttl_ms)
    end
  end
end

local function ended(id, ending, ttl_ms, id_ttl_ms, dead)
  leave_behind(id, ending, ttl_ms, id_ttl_ms, dead)
  tell(id, ending)
end
