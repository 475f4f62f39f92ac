-- Give up a lease, so that the consumer's messages can be claimed immediately.
-- KEYS: stream leases lapsed stats
-- USES: wake hand_back streams
-- OF A GROUP: log_group log_stream
-- ARGV: clock, group, consumer, blameless (0|1), released (name)
-- Returns {number of messages it held, 1 if it holds more and keeps its lease until the next call, or 0 if it has left}. Only a
-- blameless leave, which releases the messages, takes several calls.
-- If the `leases` key was lost, a consumer may hold messages without a lease. It leaves in the same way. A lapsed consumer is
-- not changed.
local consumer, blameless, released, STEP = ARGV[3], ARGV[4] == '1', ARGV[5], 200
if not redis.call('ZSCORE', LEASES, consumer) and redis.call('SISMEMBER', LAPSED, consumer) == 1 then return { 0, 0 } end
local n, more, empty = 0, 0, {}
for i, stream in ipairs(streams) do
  local pending = redis.pcall('XPENDING', stream.key, stream.group, '-', '+', STEP, consumer)
  if pending.err then pending = {} end  -- the consumer group is gone, and with it all claims
  local held = #pending
  if blameless then
    hand_back(stream, released, pending)
    if held == STEP then more = 1 end
  elseif held == STEP then  -- only the summary of all consumers has the full number
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
