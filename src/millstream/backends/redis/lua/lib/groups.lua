-- KEYS: topic groups
-- The groups of a topic, each with keys of its own under the topic's.
local function key_of(group, word) return TOPIC .. ':g:' .. group .. ':' .. word end

-- One token: there is something to claim.
local function wake_group(name)
  local list = key_of(name, 'wake')
  if redis.call('LLEN', list) == 0 then redis.call('LPUSH', list, 1) end
end

local function wake_groups()
  for _, name in ipairs(redis.call('SMEMBERS', GROUPS)) do wake_group(name) end
end
