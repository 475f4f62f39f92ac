-- KEYS: log
-- Writes an event to the log. Its id is by the clock of every script.
local stamp = ARGV[1] == '0' and '*' or ARGV[1] .. '-*'
local function record(body, expires)
  if expires == '0' or expires == 0 then return redis.call('XADD', LOG, stamp, 'd', body) end
  return redis.call('XADD', LOG, stamp, 'd', body, 'x', expires)
end
