-- Give up a lease: what the consumer held can be claimed at once.
-- KEYS: stream leases overdue lapsed stats
-- USES: wake hand_back
-- ARGV: clock, group, consumer, blameless (0|1), released (name)
-- Returns how much it held.
local group, consumer, released = ARGV[2], ARGV[3], ARGV[5]
redis.call('HDEL', OVERDUE, consumer)
if redis.call('ZREM', LEASES, consumer) == 0 then return 0 end
local n = 0
if ARGV[4] == '1' then
  local pending
  repeat
    pending = redis.call('XPENDING', STREAM, group, '-', '+', 200, consumer)
    for _, p in ipairs(pending) do hand_back(group, released, p[1], p[4]) end
    n = n + #pending
  until #pending == 0
  if n > 0 then redis.call('HINCRBY', STATS, 'released', n) end
  redis.call('XGROUP', 'DELCONSUMER', STREAM, group, consumer)
else
  local summary = redis.call('XPENDING', STREAM, group)
  for _, held in ipairs(summary[4] or {}) do
    if held[1] == consumer then n = tonumber(held[2]) end
  end
  if n > 0 then
    redis.call('SADD', LAPSED, consumer)
  else
    redis.call('XGROUP', 'DELCONSUMER', STREAM, group, consumer)
  end
end
if n > 0 then wake() end
return n
