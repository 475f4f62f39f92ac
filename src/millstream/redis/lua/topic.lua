-- A topic in numbers, and each of its groups.
-- KEYS: log log_due log_stats
-- USES: groups
-- ARGV: clock, group (of a queue's stream)
-- Returns {events in the log, delayed, counters, groups}; of a group: {name, last entry it was given, how many it was not given yet
-- or -1, ready or running, running, scheduled, dead, paused, consumers}.
local length = redis.call('XLEN', LOG)
local first, last = '0-0', '0-0'
local info = redis.pcall('XINFO', 'STREAM', LOG)
for k = 1, #info, 2 do
  if info[k] == 'last-generated-id' then last = info[k + 1] elseif info[k] == 'first-entry' and info[k + 1] then first = info[k + 1][1] end
end

local function number(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
local function before(a, b)
  local a_ms, a_seq = number(a)
  local b_ms, b_seq = number(b)
  return a_ms < b_ms or a_ms == b_ms and a_seq < b_seq
end

local read = {}
info = redis.pcall('XINFO', 'GROUPS', LOG)
for _, each in ipairs(info.err and {} or info) do
  local words = {}
  for k = 1, #each, 2 do words[each[k]] = each[k + 1] end
  read[words.name] = words
end

-- The server's own count is off where entries were dropped before they were read, and unknown after a seek into the middle.
local function lag_of(place, counted)
  if length == 0 or not before(place, last) then return 0 end
  if before(place, first) then return length end
  return counted and math.min(counted, length) or -1
end

local function running_in(stream, group, leases)
  local running = 0
  local summary = redis.pcall('XPENDING', stream, group)
  for _, held in ipairs(not summary.err and summary[4] or {}) do
    if redis.call('ZSCORE', leases, held[1]) then running = running + tonumber(held[2]) end
  end
  return running
end

local groups = {}
for i, name in ipairs(redis.call('SMEMBERS', GROUPS)) do
  local words = read[name] or {}
  local place = words['last-delivered-id'] or redis.call('HGET', key_of(name, 'meta'), 'cursor') or '0-0'
  local lag, stream, leases = lag_of(place, words.lag), key_of(name, 's'), key_of(name, 'leases')
  groups[i] = {
    name, place, lag,
    redis.call('XLEN', stream) + (words.pending or 0) + math.max(0, lag),
    running_in(stream, ARGV[2], leases) + running_in(LOG, name, leases),
    redis.call('ZCARD', key_of(name, 'due')), redis.call('XLEN', key_of(name, 'dead')),
    redis.call('HGET', key_of(name, 'meta'), 'paused') == '1' and 1 or 0, redis.call('ZCARD', leases),
  }
end
return { length, redis.call('ZCARD', LOG_DUE), redis.call('HGETALL', LOG_STATS), groups }
