-- KEYS: dead
-- Notes about dead letters whose handler failed, by entry. `:handling` holds 't' and the message of the next attempt, or 'u'
-- and why there is none. `:due` holds the times of the next attempts.

-- Removes a letter from the list, with its notes.
local function remove_letter(entry)
  redis.call('XDEL', DEAD, entry)
  if redis.call('HDEL', DEAD .. ':handling', entry) == 1 then redis.call('ZREM', DEAD .. ':due', entry) end
end

-- Adds the note of an entry to its fields, as `n`. Returns the note.
local function add_note(entry)
  local note = redis.call('HGET', DEAD .. ':handling', entry[1])
  if note and #entry[2] > 0 then
    entry[2][#entry[2] + 1] = 'n'
    entry[2][#entry[2] + 1] = note
  end
  return note
end
