-- KEYS: dead index stopped_letters
-- Returns the dead letter of a job: its fields by name, and `entry`. nil if the job is not dead.
local function letter_of(id)
  local at = redis.call('HGET', INDEX, id)
  if not at or string.sub(at, 1, 1) ~= 'd' then return nil end
  local entry = string.sub(at, 2)
  local found = redis.call('XRANGE', DEAD, entry, entry)[1]
  if not found then
    redis.call('HDEL', INDEX, id)
    return nil
  end
  local letter = { entry = entry }
  for i = 1, #found[2], 2 do letter[found[2][i]] = found[2][i + 1] end
  return letter
end

-- Removes a letter from the list.
local function exhume(letter)
  redis.call('HDEL', INDEX, letter.i)
  remove_letter(letter.entry)
  if letter.k then redis.call('ZREM', STOPPED_LETTERS, of_key(letter.k) .. letter.o .. letter.i) end
end
