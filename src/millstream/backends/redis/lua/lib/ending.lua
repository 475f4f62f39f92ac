-- KEYS: ending given
-- CONSTANTS: request_ms
-- What every end of a job has in common, after the transition itself: it keeps the ending, lets a given id expire, and tells those
-- who wait. Uses `tell`.

-- Frees a given id whose own time is 0. The request that used it stays noted behind a newline: if it is sent again after a lost
-- reply, it is answered and creates nothing.
local function free_id(id, known) redis.call('SET', GIVEN .. id, '\n' .. known, 'PX', REQUEST_MS) end

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
