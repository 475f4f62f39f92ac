-- KEYS: log
-- How far the groups of a log are: name → {position: the last entry it was given, pending: how many it has not settled, lag: how many
-- it was not given yet, nil if nobody knows}.
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
    -- The server's count is off where entries were dropped before they were read, and unknown after a move into the middle.
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
