-- A queue in numbers.
-- KEYS: stream leases due dead meta stats
-- ARGV: clock, group
-- Returns {entries, running, scheduled, dead, paused, consumers, counters}.
local running = 0
local summary = redis.pcall('XPENDING', STREAM, ARGV[2])
if not summary.err then
  for _, held in ipairs(summary[4] or {}) do
    if redis.call('ZSCORE', LEASES, held[1]) then running = running + tonumber(held[2]) end
  end
end
return {
  redis.call('XLEN', STREAM), running, redis.call('ZCARD', DUE), redis.call('XLEN', DEAD),
  redis.call('HGET', META, 'paused') == '1' and 1 or 0, redis.call('ZCARD', LEASES), redis.call('HGETALL', STATS),
}
