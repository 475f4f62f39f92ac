-- KEYS: dead
-- What is noted of dead letters whose handler failed, by their entries. `:handling` has 't' and the message of the next attempt, or 'u' and
-- why there is none; `:due` has the times of the next attempts.

-- Takes a letter off the list, with what is noted of it.
local function remove_letter(entry)
  redis.call('XDEL', DEAD, entry)
  if redis.call('HDEL', DEAD .. ':handling', entry) == 1 then redis.call('ZREM', DEAD .. ':due', entry) end
end

-- Adds to the fields of an entry what is noted of it, as `n`.
local function add_note(entry)
  local note = redis.call('HGET', DEAD .. ':handling', entry[1])
  if note and #entry[2] > 0 then
    entry[2][#entry[2] + 1] = 'n'
    entry[2][#entry[2] + 1] = note
  end
  return note
end
