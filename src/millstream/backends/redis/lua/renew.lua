-- Extend leases that still exist. Also lets dead letters past their age go: it runs at least every lease, and costs little.
-- KEYS: leases
-- USES: clock members handling retire
-- ARGV: clock, dead_max_count, dead_oldest_ms (age), then consumer, lease_ms each
-- Returns the consumers whose lease is gone.
local lost = {}
for i = 4, #ARGV, 2 do
  if redis.call('ZSCORE', LEASES, ARGV[i]) then
    redis.call('ZADD', LEASES, now + ARGV[i + 1], ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
retire(tonumber(ARGV[2]), now - ARGV[3])
return lost
