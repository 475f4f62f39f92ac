-- Hand back what was claimed and not finished; others claim it before anything else.
-- KEYS: stream leases stats
-- USES: clock wake append ending bury hand_back homes members keyed turns supersede stopping aside
-- OF A GROUP: log_home
-- ARGV: clock, group, consumer, released (name), id_ttl_ms, then refs
-- Returns how many, or -1 if the consumer has no lease.
local consumer, released = ARGV[3], ARGV[4]
if not redis.call('ZSCORE', LEASES, consumer) then return -1 end
id_ttl_ms = tonumber(ARGV[5])
local n = 0
for i = 6, #ARGV do
  local home, entry = home_of(ARGV[i])
  local pending = redis.pcall('XPENDING', home.key, home.group, entry, entry, 1, consumer)[1]  -- nil if the group is gone
  if pending then
    local found = string.find(ARGV[i], '/', 1, true) and redis.call('XRANGE', home.key, entry, entry)[1]
    if not found or keeps_claim(home, found, '') then hand_back(home, released, entry, pending[4]) end
    n = n + 1
  end
end
if n > 0 then
  redis.call('HINCRBY', STATS, 'released', n)
  wake()
end
return n
