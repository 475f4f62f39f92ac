-- KEYS: turns index held
-- Part of `around`: turns whose messages are gone, because another program deleted them or their stream. These turns are
-- passed on.

-- Whether the message that has a turn still exists. If the index has another message with this id, assume that it does: a key
-- that waits too long is better than two of its messages at a time. A dead message has no turn.
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

-- Checks some turns, starting at `cursor`. Returns the number of turns without a message, and the next cursor or '' at the end.
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
