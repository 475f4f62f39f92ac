-- Stop waiting for a job's ending: remove the caller's channel.
-- KEYS: waiters
-- ARGV: clock, id, channel
-- Returns 0 if nobody waits for the job, else 1.
local channels = redis.call('HGET', WAITERS, ARGV[2])
if not channels then return 0 end
local rest = {}
for channel in string.gmatch(channels, '[^\n]+') do
  if channel ~= ARGV[3] then rest[#rest + 1] = channel end
end
if #rest == 0 then return redis.call('HDEL', WAITERS, ARGV[2]) end
redis.call('HSET', WAITERS, ARGV[2], table.concat(rest, '\n'))
return 1
