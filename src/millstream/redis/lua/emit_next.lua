-- The common publish of events: to the log at once, serials that follow the sender's last, no bound reached, a group there.
-- Anything else changes nothing here and goes through `emit`.
-- KEYS: log_due log_stats sender
-- USES: groups log
-- ARGV: clock, sender, id_ttl_ms, max_length (-1: none), mark before, mark after, then one body each
-- Returns 1 if all were created.
local bound, mark = tonumber(ARGV[4]), SENDER .. ARGV[2]
if bound >= 0 and redis.call('XLEN', LOG) + redis.call('ZCARD', LOG_DUE) + #ARGV - 6 > bound then return 0 end
if redis.call('SCARD', GROUPS) == 0 then return 0 end
local was = redis.call('SET', mark, ARGV[6], 'PX', ARGV[3], 'GET')
if (was or '0') ~= ARGV[5] then
  if was then redis.call('SET', mark, was, 'PX', ARGV[3]) else redis.call('DEL', mark) end
  return 0
end
for i = 7, #ARGV do redis.call('XADD', LOG, stamp, 'd', ARGV[i]) end
wake_groups()
redis.call('HINCRBY', LOG_STATS, 'published', #ARGV - 6)
return 1
