-- KEYS: log
-- Up to which entry groups have settled the log, which is noted of each: one whose position in the log is lost goes on from there.

-- A group that was last given `position` has settled all up to here.
local function settled_by(name, position)
  local first = redis.call('XPENDING', LOG, name, '-', '+', 1)[1]
  if first and not before(position, first[1]) then return id_before(first[1]) end
  return position
end

local function note(name, position) redis.call('HSET', key_of(name, 'meta'), 'cursor', settled_by(name, position)) end

-- What is noted of a group, or nil. The beginning if the log does not reach that far: it is another one, by a clock that went back.
local function noted(name)
  local position = redis.call('HGET', key_of(name, 'meta'), 'cursor')
  if not position then return nil end
  local info = redis.pcall('XINFO', 'STREAM', LOG)
  for k = 1, #info, 2 do
    if info[k] == 'last-generated-id' then return before(info[k + 1], position) and '0-0' or position end
  end
  return '0-0'
end
