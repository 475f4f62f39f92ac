-- KEYS: stream leases index
-- Where a live job is: 'h' scheduled, 'p' blocked, 'd' dead, 'ready', 'running', or nil; with its index value.
local function locate(group, id)
  local at = redis.call('HGET', INDEX, id)
  if not at then return nil end
  local first = string.sub(at, 1, 1)
  if first == 'h' or first == 'p' or first == 'd' then return first, at end
  local pending = redis.pcall('XPENDING', STREAM, group, at, at, 1)
  if not pending.err and pending[1] then
    -- Held by the living, or waiting to be taken over.
    if redis.call('ZSCORE', LEASES, pending[1][2]) then return 'running', at end
  elseif #redis.call('XRANGE', STREAM, at, at) == 0 then
    return nil  -- its entry is gone: it was malformed, or something else trimmed the stream; `around` finds it
  end
  return 'ready', at
end
