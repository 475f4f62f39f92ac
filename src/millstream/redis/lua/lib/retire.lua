-- KEYS: dead index
-- Removes dead letters beyond the bounds of count and age, a few at a time, oldest first.
local function retire(max_count, oldest_ms)
  local excess = redis.call('XLEN', DEAD) - max_count
  for _ = 1, 20 do
    local letter = redis.call('XRANGE', DEAD, '-', '+', 'COUNT', 1)[1]
    if not letter then return end
    local id, died
    local fields = letter[2]
    for i = 1, #fields, 2 do
      if fields[i] == 'i' then id = fields[i + 1] elseif fields[i] == 'a' then died = tonumber(fields[i + 1]) end
    end
    if excess <= 0 and not (died and died < oldest_ms) then return end
    redis.call('XDEL', DEAD, letter[1])
    if id and redis.call('HGET', INDEX, id) == 'd' .. letter[1] then redis.call('HDEL', INDEX, id) end
    excess = excess - 1
  end
end
