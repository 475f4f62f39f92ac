-- The keys that are stopped, some at a time.
-- KEYS: stopped stopped_letters
-- USES: members
-- FLAGS: no-writes
-- ARGV: clock, cursor, about how many
-- Returns {the next cursor ('0': that was all), three each: key, 'since_ms id', number of letters it left behind}. A key may come twice.
local scanned = redis.call('HSCAN', STOPPED, ARGV[2], 'COUNT', ARGV[3])
local found, rows = scanned[2], {}
for i = 1, #found, 2 do
  local begins = of_key(found[i])
  rows[#rows + 1] = found[i]
  rows[#rows + 1] = found[i + 1]
  rows[#rows + 1] = redis.call('ZLEXCOUNT', STOPPED_LETTERS, '[' .. begins, '(' .. begins .. '\255')
end
return { scanned[1], rows }
