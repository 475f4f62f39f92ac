-- Pause or resume a queue.
-- KEYS: meta
-- USES: wake
-- ARGV: clock, paused (0|1)
-- Returns 1.
if ARGV[2] == '1' then
  redis.call('HSET', META, 'paused', '1')
else
  redis.call('HDEL', META, 'paused')
  wake()
end
return 1
