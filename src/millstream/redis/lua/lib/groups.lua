-- KEYS: topic log groups
-- The groups of a topic, each with keys of its own under the topic's.
local function key_of(group, word) return TOPIC .. ':g:' .. group .. ':' .. word end

-- Name → the last entry it was given, as the log has it; of other programs' groups too. Empty if the topic has no log yet.
local function places()
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

-- Puts a group somewhere in the log: 'CREATE' or 'SETID'. At the end ('$') we know how many it has passed, elsewhere nobody does.
local function put_at(verb, name, start)
  local command = { verb, LOG, name, start }
  if verb == 'CREATE' then command[#command + 1] = 'MKSTREAM' end
  if start == '$' then
    local info = redis.pcall('XINFO', 'STREAM', LOG)
    for k = 1, #info, 2 do
      if info[k] == 'entries-added' then
        command[#command + 1] = 'ENTRIESREAD'
        command[#command + 1] = info[k + 1]
      end
    end
  end
  return redis.pcall('XGROUP', unpack(command))
end

-- One token: there is something to claim.
local function wake_group(name)
  local list = key_of(name, 'wake')
  if redis.call('LLEN', list) == 0 then redis.call('LPUSH', list, 1) end
end

-- Returns how many groups there are.
local function wake_groups()
  local groups = redis.call('SMEMBERS', GROUPS)
  for _, name in ipairs(groups) do wake_group(name) end
  return #groups
end
