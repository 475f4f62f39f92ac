-- KEYS: log
-- Writes an event to the log. The entry id comes from the clock of the scripts. `key` is nil for an event without an ordering
-- key.
local stamp = ARGV[1] == '0' and '*' or ARGV[1] .. '-*'
local function record(id, body, expires, key)
  local fields = { 'd', body }
  if key then fields = { 'd', body, 'k', key, 'i', id } end
  if tonumber(expires) ~= 0 then
    fields[#fields + 1] = 'x'
    fields[#fields + 1] = expires
  end
  return redis.call('XADD', LOG, stamp, unpack(fields))
end
