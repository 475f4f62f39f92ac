-- Extend leases that still exist. Also removes old dead letters, because this script runs at least once per lease and is cheap.
-- KEYS: leases
-- USES: clock members handling retire
-- ARGV: clock, dead_max_count, dead_oldest_ms (age), then two for each consumer: name, lease_ms
-- Returns the consumers that have lost their lease.
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
