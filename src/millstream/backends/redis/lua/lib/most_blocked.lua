-- Returns the largest number of blocked events in one group. They have left the log, but still count against max_length.
local function most_blocked()
  local most = 0
  for _, name in ipairs(redis.call('SMEMBERS', GROUPS)) do
    most = math.max(most, redis.call('ZCARD', key_of(name, 'blocked')))
  end
  return most
end
