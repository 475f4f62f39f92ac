-- KEYS: turns blocked
-- Part of a settle: each ended message that had the turn of its key passes it on. Returns the number of messages that became
-- ready.
local function pass_on(positions, keys)
  local turns, whose, once = redis.call('HMGET', TURNS, unpack(keys)), {}, {}
  for i, key in ipairs(keys) do
    if turns[i] and not once[key] and string.sub(turns[i], 2, 41) == positions[i] then
      whose[#whose + 1], once[key] = key, true
    end
  end
  if #whose == 0 then return 0 end
  if redis.call('EXISTS', BLOCKED) == 1 then return pass_turns(whose) end
  redis.call('HDEL', TURNS, unpack(whose))
  return 0
end
