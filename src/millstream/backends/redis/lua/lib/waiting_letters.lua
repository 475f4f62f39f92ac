-- KEYS: stream due dead
-- Part of `around`: dead letters that wait for another attempt, but are neither in `due` nor claimed, because `due` was lost.
-- They are due now. Starts at `cursor`. Returns the number found, and the next cursor or '' at the end.
local function find_waiting(cursor)
  local scanned, found = redis.call('HSCAN', DEAD .. ':handling', cursor == '' and '0' or cursor, 'COUNT', PAGE), 0
  local notes = scanned[2]
  for i = 1, #notes, 2 do
    local entry = notes[i]
    if string.byte(notes[i + 1]) == 116 and not redis.call('ZSCORE', DUE, entry) then  -- 't'
      local pending = redis.pcall('XPENDING', STREAM, ARGV[2], entry, entry, 1)
      if not pending.err and #pending == 0 then found = found + redis.call('ZADD', DUE, now, entry) end
    end
  end
  return found, scanned[1] == '0' and '' or scanned[1]
end
