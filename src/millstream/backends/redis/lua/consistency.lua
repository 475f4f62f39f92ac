-- Return counts of a queue or group that must agree, and what each consumer holds.
-- KEYS: stream leases index held due dead lapsed meta blocked
-- USES: clock streams
-- OF A GROUP: log_group log_stream
-- FLAGS: no-writes
-- ARGV: clock, group
-- Returns {entries, indexed, held, due or blocked, dead, paused, existing consumer groups (1: in its stream, plus 2: in the
-- log), valid leases, lapsed consumers, consumers, number of messages that each consumer holds, whether each consumer has a
-- lease (0|1)}.
local names, holding, leased, known, there = {}, {}, {}, {}, 0
for i, stream in ipairs(streams) do
  local consumers = redis.pcall('XINFO', 'CONSUMERS', stream.key, stream.group)
  if not consumers.err then there = there + i end
  for _, info in ipairs(consumers.err and {} or consumers) do
    local name, held
    for k = 1, #info, 2 do
      if info[k] == 'name' then name = info[k + 1] elseif info[k] == 'pending' then held = info[k + 1] end
    end
    local at = known[name] or #names + 1
    known[name], names[at], holding[at] = at, name, (holding[at] or 0) + held
    leased[at] = redis.call('ZSCORE', LEASES, name) and 1 or 0
  end
end
return {
  redis.call('XLEN', STREAM), redis.call('HLEN', INDEX), redis.call('HLEN', HELD), redis.call('ZCARD', DUE) + redis.call('ZCARD', BLOCKED),
  redis.call('XLEN', DEAD), redis.call('HGET', META, 'paused') == '1' and 1 or 0, there,
  redis.call('ZCOUNT', LEASES, '(' .. now, '+inf'), redis.call('SMEMBERS', LAPSED), names, holding, leased,
}
