-- KEYS: log_meta
-- Marks a topic as followed: it may have readers without a group. The mark identifies the life of the log, and is lost with it.
local function mark_followed()
  local t = redis.call('TIME')
  redis.call('HSETNX', LOG_META, 'followed', t[1] .. '.' .. t[2])
end
