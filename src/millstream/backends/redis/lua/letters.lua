-- Return the numbers of a group's dead letters as a queue.
-- KEYS: stream leases meta stats due
-- USES: order
-- FLAGS: no-writes
-- ARGV: clock, group, suspects (name of the pseudo-consumer)
-- Returns the same fields as `queue`. The number of letters that were never delivered is exact if it is 0. Otherwise it is the
-- server's estimate.
local running, suspects, entries, length = 0, 0, 0, redis.call('XLEN', STREAM)
local summary = redis.pcall('XPENDING', STREAM, ARGV[2])
if not summary.err then
  entries = summary[1]
  for _, held in ipairs(summary[4] or {}) do
    if redis.call('ZSCORE', LEASES, held[1]) then running = running + tonumber(held[2]) end
    if held[1] == ARGV[3] then suspects = suspects + tonumber(held[2]) end
  end
end
if length > 0 then
  local first = redis.call('XRANGE', STREAM, '-', '+', 'COUNT', 1)[1][1]
  local last = redis.call('XREVRANGE', STREAM, '+', '-', 'COUNT', 1)[1][1]
  local given, lag = nil, nil  -- nil if no consumer ever joined: then no letter is ready
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', STREAM)) do
    local words = {}
    for k = 1, #info, 2 do words[info[k]] = info[k + 1] end
    if words.name == ARGV[2] then given, lag = words['last-delivered-id'], words.lag or nil end
  end
  if not given then
    entries = 0
  elseif before(given, first) then
    entries = entries + length
  elseif before(given, last) then
    lag = lag or #redis.call('XRANGE', STREAM, '(' .. given, '+', 'COUNT', 20)
    entries = entries + math.max(1, math.min(lag, length))
  end
end
return {
  entries, running, redis.call('ZCARD', DUE), length,
  redis.call('HGET', META, 'paused') == '1' and 1 or 0, redis.call('ZCARD', LEASES), redis.call('HGETALL', STATS),
  0, 0, suspects,
}
