-- The common publish: jobs that are ready at once and whose serials follow the sender's last, on a queue without a bound.
-- Anything else changes nothing here and goes through `publish`. (Measured: less than half of its server time per call.)
-- KEYS: stream index stats sender
-- USES: wake
-- ARGV: clock, sender, id_ttl_ms, mark before (the serial before the first), mark after (the last), then one body each
-- Returns 1 if all were created, 0 if the serials do not follow.
local sender, mark = ARGV[2], SENDER .. ARGV[2]
local was = redis.call('SET', mark, ARGV[5], 'PX', ARGV[3], 'GET')  -- one call instead of two: almost always it follows
if (was or '0') ~= ARGV[4] then
  if was then redis.call('SET', mark, was, 'PX', ARGV[3]) else redis.call('DEL', mark) end
  return 0
end
if #ARGV == 6 then  -- one alone is the most common of all
  redis.call('HSET', INDEX, sender .. '-' .. ARGV[5], redis.call('XADD', STREAM, '*', 'd', ARGV[6]))
else
  local index, before = {}, ARGV[4] - 5
  for i = 6, #ARGV do
    index[#index + 1] = string.format('%s-%d', sender, before + i)
    index[#index + 1] = redis.call('XADD', STREAM, '*', 'd', ARGV[i])
  end
  redis.call('HSET', INDEX, unpack(index))
end
wake()
redis.call('HINCRBY', STATS, 'published', #ARGV - 5)
return 1
