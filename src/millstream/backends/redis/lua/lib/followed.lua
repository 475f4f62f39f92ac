-- KEYS: log_meta
-- A topic that is followed: it may be read by some who have no group. What is noted names this life of the topic, and is lost
-- with it.
local function mark_followed()
  local t = redis.call('TIME')
  redis.call('HSETNX', LOG_META, 'followed', t[1] .. '.' .. t[2])
end
