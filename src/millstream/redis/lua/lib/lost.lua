-- KEYS: turns index
-- The one that had the turn is gone from its stream, with its key: whose it was is known by its entry alone.
local function pass_turn_of_lost(entry)
  local turns, keys = redis.call('HGETALL', TURNS), {}
  for i = 1, #turns, 2 do
    local id = holder_of(turns[i + 1])
    if id and (string.sub(turns[i + 1], 2, 41) == place_of(entry) or redis.call('HGET', INDEX, id) == entry) then
      keys[#keys + 1] = turns[i]
    end
  end
  if #keys > 0 then pass_turns(keys) end
end
