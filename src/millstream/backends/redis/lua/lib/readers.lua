-- KEYS: log
-- Returns the progress of the groups of a log: name → {position: last entry read, pending: number of entries read but not
-- settled, lag: number of unread entries, or nil if unknown}.
local function readers()
  local found, length, first, last = {}, redis.call('XLEN', LOG), nil, nil
  local groups = redis.pcall('XINFO', 'GROUPS', LOG)
  if groups.err then return found end
  if length > 0 then
    first = redis.call('XRANGE', LOG, '-', '+', 'COUNT', 1)[1][1]
    last = redis.call('XREVRANGE', LOG, '+', '-', 'COUNT', 1)[1][1]
  end
  for _, info in ipairs(groups) do
    local words = {}
    for k = 1, #info, 2 do words[info[k]] = info[k + 1] end
    local position, lag = words['last-delivered-id'], words.lag or nil
    -- The server's lag is wrong if entries were dropped unread, and unknown after a seek into the middle of the log.
    if not last or not before(position, last) then
      lag = 0
    elseif before(position, first) then
      lag = length
    elseif lag then
      lag = math.min(lag, length)
    end
    found[words.name] = { position = position, pending = words.pending, lag = lag }
  end
  return found
end
