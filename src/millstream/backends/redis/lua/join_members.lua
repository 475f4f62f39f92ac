-- Add or extend a membership of the workers that share the shards of an address.
-- KEYS: leases
-- USES: clock
-- ARGV: clock, member, lease_ms
-- Returns {ms until the first other member is overdue or -1, then the members}.
redis.call('ZREMRANGEBYSCORE', LEASES, '-inf', now)
redis.call('ZADD', LEASES, now + ARGV[3], ARGV[2])
local found = redis.call('ZRANGE', LEASES, 0, -1, 'WITHSCORES')
local answer = { -1 }
for i = 1, #found, 2 do
  answer[#answer + 1] = found[i]
  if answer[1] < 0 and found[i] ~= ARGV[2] then answer[1] = found[i + 1] - now end
end
return answer
