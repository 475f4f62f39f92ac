-- KEYS: stream
-- Appends a ready message to the stream. Returns its entry id.
local function append(body, expires)
  if expires == '0' then return redis.call('XADD', STREAM, '*', 'd', body) end
  return redis.call('XADD', STREAM, '*', 'd', body, 'x', expires)
end
