-- Return the registrations of all workers. Remove workers whose registration has expired.
-- KEYS: workers worker
-- ARGV: clock
-- Returns the registrations.
local found = {}
for _, id in ipairs(redis.call('SMEMBERS', WORKERS)) do
  local info = redis.call('GET', WORKER .. id)
  if info then found[#found + 1] = info else redis.call('SREM', WORKERS, id) end
end
return found
