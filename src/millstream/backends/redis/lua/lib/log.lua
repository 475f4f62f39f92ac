-- KEYS: log
-- Writes an event to the log. Its entry's id is by the clock of every script. `key`: nil if it is in no order.
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
