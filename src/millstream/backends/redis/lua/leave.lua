-- Give up a lease: what the consumer held can be claimed at once. A name without a lease that still holds something, since the key
-- of the leases was lost, is given up in the same way; one that has lapsed is left alone.
-- KEYS: stream leases lapsed stats
-- USES: wake hand_back streams
-- OF A GROUP: log_group log_stream
-- ARGV: clock, group, consumer, blameless (0|1), released (name)
-- Returns {how much it held, 1: it holds more and keeps its lease until the next call, 0: it has left}. Only a blameless one takes
-- several calls.
local consumer, blameless, released, STEP = ARGV[3], ARGV[4] == '1', ARGV[5], 200
if not redis.call('ZSCORE', LEASES, consumer) and redis.call('SISMEMBER', LAPSED, consumer) == 1 then return { 0, 0 } end
local n, more, empty = 0, 0, {}
for i, stream in ipairs(streams) do
  local pending = redis.pcall('XPENDING', stream.key, stream.group, '-', '+', STEP, consumer)
  if pending.err then pending = {} end  -- the group is gone, and with it whatever was claimed
  local held = #pending
  if blameless then
    hand_back(stream, released, pending)
    if held == STEP then more = 1 end
  elseif held == STEP then  -- how much that is only the summary of all consumers says
    for _, each in ipairs(redis.call('XPENDING', stream.key, stream.group)[4]) do
      if each[1] == consumer then held = tonumber(each[2]) end
    end
  end
  n, empty[i] = n + held, blameless or held == 0
end
if more == 0 then
  redis.call('ZREM', LEASES, consumer)
  for i, stream in ipairs(streams) do
    if empty[i] then
      redis.pcall('XGROUP', 'DELCONSUMER', stream.key, stream.group, consumer)
    else
      redis.call('SADD', LAPSED, consumer)
    end
  end
end
if n > 0 then
  if blameless then redis.call('HINCRBY', STATS, 'released', n) end
  wake()
end
return { n, more }
