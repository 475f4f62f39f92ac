-- KEYS: turns index held
-- Turns whose messages are gone, with their streams or out of them: other hands did that. They are passed on.

-- Whether the one that has a turn is where it should be. If the index means another one of its id, it is taken to be: a key that waits
-- too long is better than two of it at a time. One that is dead has no turn any more.
local function is_there(turn)
  local position, id = string.sub(turn, 2, 41), string.sub(turn, 42)
  local at = redis.call('HGET', INDEX, id)
  if string.byte(turn) == 98 then return redis.call('HEXISTS', HELD, id) == 1 end  -- 'b'
  local alive = at and string.byte(at) ~= 100  -- 'd'
  if alive and (not string.find(at, '^%d') or #redis.call('XRANGE', STREAM, at, at) > 0) then return true end
  if not in_group then return false end
  local ms, seq = string.sub(position, 1, 20), string.sub(position, 21)
  local entry = string.gsub(ms, '^0+(%d)', '%1') .. '-' .. string.gsub(seq, '^0+(%d)', '%1')
  local pending = redis.pcall('XPENDING', streams[2].key, streams[2].group, entry, entry, 1)
  return not pending.err and #pending > 0
end

-- Looks at some turns, on from `cursor`; returns how many had strayed, and where to go on, or ''.
local function find_strayed(cursor)
  local scanned, keys, found = redis.call('HSCAN', TURNS, cursor == '' and '0' or cursor, 'COUNT', 50), {}, 0
  local turns = scanned[2]
  for i = 1, #turns, 2 do
    if turns[i + 1] ~= 's' and not is_there(turns[i + 1]) then
      found = found + 1
      if not stop_again(turns[i]) then keys[#keys + 1] = turns[i] end
    end
  end
  if #keys > 0 and pass_turns(keys) > 0 then wake() end
  return found, scanned[1] == '0' and '' or scanned[1]
end
