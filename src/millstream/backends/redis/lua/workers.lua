-- What the registered workers say of themselves; those that fell silent are taken off the list.
-- KEYS: workers worker
-- ARGV: clock
local found = {}
for _, id in ipairs(redis.call('SMEMBERS', WORKERS)) do
  local info = redis.call('GET', WORKER .. id)
  if info then found[#found + 1] = info else redis.call('SREM', WORKERS, id) end
end
return found
