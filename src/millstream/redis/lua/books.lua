-- A queue's books, which must add up, and who holds what.
-- KEYS: stream leases index held due dead lapsed meta
-- USES: clock
-- ARGV: clock, group
-- Returns {entries, indexed, held, due, dead, paused, has a group (0|1), leases that have not passed, lapsed names,
-- names of consumers, of each: what it holds, of each: whether it has a lease (0|1)}.
local names, holding, leased = {}, {}, {}
local consumers = redis.pcall('XINFO', 'CONSUMERS', STREAM, ARGV[2])
for i, info in ipairs(consumers.err and {} or consumers) do
  for k = 1, #info, 2 do
    if info[k] == 'name' then names[i] = info[k + 1] elseif info[k] == 'pending' then holding[i] = info[k + 1] end
  end
  leased[i] = redis.call('ZSCORE', LEASES, names[i]) and 1 or 0
end
return {
  redis.call('XLEN', STREAM), redis.call('HLEN', INDEX), redis.call('HLEN', HELD), redis.call('ZCARD', DUE),
  redis.call('XLEN', DEAD), redis.call('HGET', META, 'paused') == '1' and 1 or 0, consumers.err and 0 or 1,
  redis.call('ZCOUNT', LEASES, '(' .. now, '+inf'), redis.call('SMEMBERS', LAPSED), names, holding, leased,
}
