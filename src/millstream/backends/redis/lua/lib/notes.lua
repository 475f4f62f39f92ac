-- KEYS: log
-- The cursor of a group: the entry up to which it has settled the log. A group that loses its position continues from its
-- cursor.

-- Returns the entry up to which a group has settled all. `position` is the last entry that it has read.
local function settled_by(name, position)
  local first = redis.call('XPENDING', LOG, name, '-', '+', 1)[1]
  if first and not before(position, first[1]) then return id_before(first[1]) end
  return position
end

local function note(name, position) redis.call('HSET', key_of(name, 'meta'), 'cursor', settled_by(name, position)) end

-- Returns the cursor of a group, or nil. If the log ends before the cursor, it is a new log, written after the clock was set
-- back, and the group continues from its beginning.
local function noted(name)
  local position = redis.call('HGET', key_of(name, 'meta'), 'cursor')
  if not position then return nil end
  local info = redis.pcall('XINFO', 'STREAM', LOG)
  for k = 1, #info, 2 do
    if info[k] == 'last-generated-id' then return before(info[k + 1], position) and '0-0' or position end
  end
  return '0-0'
end
