-- KEYS: stream leases index
-- Returns the location of a job ('h' scheduled, 'p' blocked, 'd' dead, 'ready' or 'running') and its index value, or nil.
local function locate(group, id)
  local at = redis.call('HGET', INDEX, id)
  if not at then return nil end
  local first = string.sub(at, 1, 1)
  if first == 'h' or first == 'p' or first == 'd' then return first, at end
  local pending = redis.pcall('XPENDING', STREAM, group, at, at, 1)
  if not pending.err and pending[1] then
    -- Held by a live consumer, or waiting to be taken over.
    if redis.call('ZSCORE', LEASES, pending[1][2]) then return 'running', at end
  elseif #redis.call('XRANGE', STREAM, at, at) == 0 then
    return nil  -- the entry is gone: malformed, or another program trimmed the stream; `around` finds it
  end
  return 'ready', at
end
