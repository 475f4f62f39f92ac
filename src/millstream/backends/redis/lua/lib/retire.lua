-- KEYS: dead index stopped_letters
-- Removes the oldest dead letters beyond the limits of count and age: at most 20 plus `came`, the number of new ones.
local function retire(max_count, oldest_ms, came)
  local excess = redis.call('XLEN', DEAD) - max_count
  for _ = 1, 20 + (came or 0) do
    local letter = redis.call('XRANGE', DEAD, '-', '+', 'COUNT', 1)[1]
    if not letter then return end
    local id, died, key, position
    local fields = letter[2]
    for i = 1, #fields, 2 do
      local word, value = fields[i], fields[i + 1]
      if word == 'i' then id = value elseif word == 'a' then died = tonumber(value) end
      if word == 'k' then key = value elseif word == 'o' then position = value end
    end
    if excess <= 0 and not (died and died < oldest_ms) then return end
    remove_letter(letter[1])
    if key then redis.call('ZREM', STOPPED_LETTERS, of_key(key) .. position .. id) end
    if id and redis.call('HGET', INDEX, id) == 'd' .. letter[1] then redis.call('HDEL', INDEX, id) end
    excess = excess - 1
  end
end
