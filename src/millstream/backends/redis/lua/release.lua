-- Release claimed messages that were not finished, without counting a crash. They are claimed before all others.
-- KEYS: stream leases stats
-- USES: wake hand_back streams
-- OF A GROUP: log_group log_stream
-- ARGV: clock, group, consumer, released (name), then refs
-- Returns the number of released messages, or -1 if the consumer has no lease.
local consumer, released = ARGV[3], ARGV[4]
if not redis.call('ZSCORE', LEASES, consumer) then return -1 end
local n = 0
for i = 5, #ARGV do
  local stream, entry = stream_of(ARGV[i])
  local pending = redis.pcall('XPENDING', stream.key, stream.group, entry, entry, 1, consumer)[1]  -- nil if the group is gone
  if pending then
    hand_back(stream, released, { pending })
    n = n + 1
  end
end
if n > 0 then
  redis.call('HINCRBY', STATS, 'released', n)
  wake()
end
return n
