-- Return the numbers of a queue.
-- KEYS: stream leases due dead meta stats blocked stopped
-- USES: streams
-- OF A GROUP: log_group log_stream order readers
-- FLAGS: no-writes
-- ARGV: clock, group, suspects (name of the pseudo-consumer)
-- Returns {entries, running, scheduled, dead, paused, consumers, counters, blocked, stopped keys, suspects}.
local running, suspects, entries = 0, 0, redis.call('XLEN', STREAM)
for _, stream in ipairs(streams) do
  local summary = redis.pcall('XPENDING', stream.key, stream.group)
  if not summary.err then
    for _, held in ipairs(summary[4] or {}) do
      if redis.call('ZSCORE', LEASES, held[1]) then running = running + tonumber(held[2]) end
      if held[1] == ARGV[3] then suspects = suspects + tonumber(held[2]) end
    end
  end
end
if in_group then  -- also the events that it has claimed in the log, and those that it has not read yet
  local reader = readers()[streams[2].group]
  if reader then entries = entries + reader.pending + (reader.lag or 0) end
end
return {
  entries, running, redis.call('ZCARD', DUE), redis.call('XLEN', DEAD),
  redis.call('HGET', META, 'paused') == '1' and 1 or 0, redis.call('ZCARD', LEASES), redis.call('HGETALL', STATS),
  redis.call('ZCARD', BLOCKED), redis.call('HLEN', STOPPED), suspects,
}
