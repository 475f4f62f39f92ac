-- How many events are blocked in the group where most are: they are not in the log any more, and still take room.
local function most_blocked()
  local most = 0
  for _, name in ipairs(redis.call('SMEMBERS', GROUPS)) do
    most = math.max(most, redis.call('ZCARD', key_of(name, 'blocked')))
  end
  return most
end
