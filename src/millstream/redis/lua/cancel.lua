-- End a job that is scheduled or ready.
-- KEYS: stream index held due stats
-- USES: place ending
-- ARGV: clock, group, id, ending, ttl_ms, id_ttl_ms
-- Returns 1 cancelled, 2 running, 0 ended or unknown.
local group, id = ARGV[2], ARGV[3]
local where, at = place(group, id)
if where == 'running' then return 2 end
if where == 'h' then
  redis.call('HDEL', HELD, id)
  redis.call('ZREM', DUE, id)
elseif where == 'ready' then
  redis.call('XDEL', STREAM, at)
  redis.pcall('XACK', STREAM, group, at)
else
  return 0
end
redis.call('HDEL', INDEX, id)
redis.call('HINCRBY', STATS, 'cancelled', 1)
ended(id, ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]))
return 1
