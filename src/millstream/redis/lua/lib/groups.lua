-- KEYS: topic log groups
-- The groups of a topic, each with keys of its own under the topic's.

-- Name → the last entry it was given; of other programs' groups too. Empty if the topic has no log yet.
local function cursors()
  local found = {}
  local groups = redis.pcall('XINFO', 'GROUPS', LOG)
  for _, info in ipairs(groups.err and {} or groups) do
    local name, at
    for k = 1, #info, 2 do
      if info[k] == 'name' then name = info[k + 1] elseif info[k] == 'last-delivered-id' then at = info[k + 1] end
    end
    found[name] = at
  end
  return found
end

-- One token each: there is something to claim.
local function wake_groups()
  for _, name in ipairs(redis.call('SMEMBERS', GROUPS)) do
    local list = TOPIC .. ':g:' .. name .. ':wake'
    if redis.call('LLEN', list) == 0 then redis.call('LPUSH', list, 1) end
  end
end

local function before(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then return tonumber(a_ms) < tonumber(b_ms) end
  return tonumber(a_seq) < tonumber(b_seq)
end
