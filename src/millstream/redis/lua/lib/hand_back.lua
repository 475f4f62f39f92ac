-- KEYS: lapsed
-- Hands entries back without counting a crash: each claim counted one delivery, this takes it off again.
local function hand_back(home, released, id, deliveries)
  redis.call('XCLAIM', home.key, home.group, released, 0, id, 'RETRYCOUNT', math.max(0, deliveries - 1), 'JUSTID')
  redis.call('SADD', LAPSED, released)
end
