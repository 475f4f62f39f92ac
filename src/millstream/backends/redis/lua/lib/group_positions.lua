-- KEYS: log
-- The positions of groups in their topic's log.

-- Returns name → last entry read, as stored in the log. Includes groups of other programs. Empty if the topic has no log yet.
local function group_positions()
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

-- Sets the position of a group: 'CREATE', or 'SETID', which returns an error if the group has no position. At the end ('$'),
-- the number of entries before the position is known and stored; elsewhere it is unknown.
local function move_group(verb, name, start)
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
  return (verb == 'CREATE' and redis.call or redis.pcall)('XGROUP', unpack(command))
end
