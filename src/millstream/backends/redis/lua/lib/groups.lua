-- KEYS: topic groups
-- The groups of a topic. Each group has its own keys under the topic's tag.
local function key_of(group, word) return TOPIC .. ':g:' .. group .. ':' .. word end

-- Wakes one idle worker of a group: there is something to claim.
local function wake_group(name)
  local list = key_of(name, 'wake')
  if redis.call('LLEN', list) == 0 then redis.call('LPUSH', list, 1) end
end

local function wake_groups()
  for _, name in ipairs(redis.call('SMEMBERS', GROUPS)) do wake_group(name) end
end
