-- KEYS: ending given
-- CONSTANTS: request_ms
-- The common part of all ends of a job, after the transition itself: store the ending, let a caller-given id expire, and
-- notify the callers that wait. Uses `tell`.

-- Frees a caller-given id whose id_ttl is 0. Its task and request are kept after a newline for REQUEST_MS: if the request is
-- sent again after a lost reply, it gets the same answer and creates nothing.
local function free_id(id, known) redis.call('SET', GIVEN .. id, '\n' .. known, 'PX', REQUEST_MS) end

-- `id_ttl_ms` is 0 for a generated id. The id of a dead job is not freed here, but when the dead letter is purged.
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
