-- The keys that are stopped.
-- KEYS: stopped barred
-- USES: members
-- ARGV: clock
-- Returns three each: key, 'since_ms id', how many letters it left behind.
local found, rows = redis.call('HGETALL', STOPPED), {}
for i = 1, #found, 2 do
  local begins = of_key(found[i])
  rows[#rows + 1] = found[i]
  rows[#rows + 1] = found[i + 1]
  rows[#rows + 1] = redis.call('ZLEXCOUNT', BARRED, '[' .. begins, '(' .. begins .. '\255')
end
return rows
