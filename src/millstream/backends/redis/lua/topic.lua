-- Return the numbers of a topic and of each of its groups.
-- KEYS: log log_due log_meta log_stats
-- USES: groups order readers
-- FLAGS: no-writes
-- ARGV: clock, name of the consumer group in each group's own stream
-- Returns {events in the log, delayed events, counters, groups, followed}. A group is {name, last entry read, number of unread
-- entries or -1 (unknown), ready or running, running, scheduled, dead, paused, consumers, blocked, stopped keys}.
local function running_in(stream, group, leases)
  local running = 0
  local summary = redis.pcall('XPENDING', stream, group)
  for _, held in ipairs(not summary.err and summary[4] or {}) do
    if redis.call('ZSCORE', leases, held[1]) then running = running + tonumber(held[2]) end
  end
  return running
end

local at, groups = readers(), {}
for i, name in ipairs(redis.call('SMEMBERS', GROUPS)) do
  local meta = redis.call('HMGET', key_of(name, 'meta'), 'cursor', 'paused')
  local reader = at[name] or { position = meta[1] or '0-0', pending = 0 }
  local stream, leases = key_of(name, 's'), key_of(name, 'leases')
  groups[i] = {
    name, reader.position, reader.lag or -1,
    redis.call('XLEN', stream) + reader.pending + (reader.lag or 0),
    running_in(stream, ARGV[2], leases) + running_in(LOG, name, leases),
    redis.call('ZCARD', key_of(name, 'due')), redis.call('XLEN', key_of(name, 'dead')),
    meta[2] == '1' and 1 or 0, redis.call('ZCARD', leases),
    redis.call('ZCARD', key_of(name, 'blocked')), redis.call('HLEN', key_of(name, 'stopped')),
  }
end
local followed = redis.call('HEXISTS', LOG_META, 'followed')
return { redis.call('XLEN', LOG), redis.call('ZCARD', LOG_DUE), redis.call('HGETALL', LOG_STATS), groups, followed }
