-- Return a job's ending. If the job has not ended, register the caller's channel in the same step, so that no ending is missed.
-- KEYS: ending index waiters
-- ARGV: clock, id, channel
-- Returns {1, ending}, {0} if the job is unknown or left no ending, or {2} if the channel was registered.
local id, channel = ARGV[2], ARGV[3]
local ending = redis.call('GET', ENDING .. id)
if ending then return { 1, ending } end
local at = redis.call('HGET', INDEX, id)
if not at or string.sub(at, 1, 1) == 'd' then return { 0 } end
local channels = redis.call('HGET', WAITERS, id)
if not channels then
  redis.call('HSET', WAITERS, id, channel)
elseif not string.find('\n' .. channels .. '\n', '\n' .. channel .. '\n', 1, true) then
  redis.call('HSET', WAITERS, id, channels .. '\n' .. channel)
end
return { 2 }
