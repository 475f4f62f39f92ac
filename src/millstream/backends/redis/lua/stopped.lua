-- List stopped keys, one page per call.
-- KEYS: stopped stopped_letters
-- USES: members
-- FLAGS: no-writes
-- ARGV: clock, cursor, approximate number of keys
-- Returns {next cursor ('0' at the end), list with three for each key: key, 'since_ms id', number of its dead letters}. A key
-- may be returned twice.
local scanned = redis.call('HSCAN', STOPPED, ARGV[2], 'COUNT', ARGV[3])
local found, rows = scanned[2], {}
for i = 1, #found, 2 do
  local begins = of_key(found[i])
  rows[#rows + 1] = found[i]
  rows[#rows + 1] = found[i + 1]
  rows[#rows + 1] = redis.call('ZLEXCOUNT', STOPPED_LETTERS, '[' .. begins, '(' .. begins .. '\255')
end
return { scanned[1], rows }
