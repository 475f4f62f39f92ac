-- Give up a lease: what the consumer held can be claimed at once.
-- KEYS: stream leases overdue lapsed stats
-- USES: wake hand_back homes
-- OF A GROUP: log_home
-- ARGV: clock, group, consumer, blameless (0|1), released (name)
-- Returns how much it held.
local consumer, released = ARGV[3], ARGV[5]
redis.call('HDEL', OVERDUE, consumer)
if redis.call('ZREM', LEASES, consumer) == 0 then return 0 end
local n = 0
for _, home in ipairs(homes) do
  local held = 0
  if ARGV[4] == '1' then
    local pending
    repeat
      pending = redis.pcall('XPENDING', home.key, home.group, '-', '+', 200, consumer)
      if pending.err then pending = {} end  -- the group is gone, and with it whatever was claimed
      for _, p in ipairs(pending) do hand_back(home, released, p[1], p[4]) end
      n = n + #pending
    until #pending == 0
  else
    local summary = redis.pcall('XPENDING', home.key, home.group)
    for _, each in ipairs(not summary.err and summary[4] or {}) do
      if each[1] == consumer then held = tonumber(each[2]) end
    end
    n = n + held
  end
  if held > 0 then
    redis.call('SADD', LAPSED, consumer)
  else
    redis.pcall('XGROUP', 'DELCONSUMER', home.key, home.group, consumer)
  end
end
if n > 0 then
  if ARGV[4] == '1' then redis.call('HINCRBY', STATS, 'released', n) end
  wake()
end
return n
