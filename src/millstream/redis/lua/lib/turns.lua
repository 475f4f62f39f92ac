-- KEYS: turns blocked keyed held index
-- Whose turn it is. Of each key that is not free: 'r' (it is out, or ready) or 'b' (it waits for a retry), then the place and the id
-- of the one that has the turn; or 's', stopped. Of one that is blocked the index says 'p' and then as `keyed` of one that is scheduled.
local function holder_of(turn) return turn and string.sub(turn, 42) end

local function give_turn(key, state, place, id) redis.call('HSET', TURNS, key, state .. place .. id) end

-- Takes one that is held out of there: its body and expiry, or nothing.
local function unhold(id)
  local stored = redis.call('HGET', HELD, id)
  if not stored then return nil end
  redis.call('HDEL', HELD, id)
  local cut = string.find(stored, '\n', 1, true)
  return string.sub(stored, cut + 1), string.sub(stored, 1, cut - 1)
end

-- Of each of these keys the first blocked one becomes ready, with the turn; a key of which none is blocked is free. How many are
-- ready now. (Hot: what can be done for all of them together is.)
local pass_turns
function pass_turns(keys)
  local free, members, ids, whose, entries, turns, passed = {}, {}, {}, {}, {}, {}, 0
  for _, key in ipairs(keys) do
    local begins = of_key(key)
    local member = redis.call('ZRANGEBYLEX', BLOCKED, '[' .. begins, '(' .. begins .. '\255', 'LIMIT', 0, 1)[1]
    if member then
      local n = #members + 1
      members[n], whose[n], ids[n] = member, key, string.sub(member, #begins + 41)
    else
      free[#free + 1] = key
    end
  end
  if #free > 0 then redis.call('HDEL', TURNS, unpack(free)) end
  if #members == 0 then return 0 end
  local held, places, lost = redis.call('HMGET', HELD, unpack(ids)), redis.call('HMGET', INDEX, unpack(ids)), {}
  redis.call('ZREM', BLOCKED, unpack(members))
  redis.call('HDEL', HELD, unpack(ids))
  for i, id in ipairs(ids) do
    local stored = held[i]
    if stored and places[i] then
      local cut, key, place, task = string.find(stored, '\n', 1, true), key_in(string.sub(places[i], 2))
      local n = 2 * passed + 1
      entries[n], entries[n + 1] = id, append_keyed(id, string.sub(stored, cut + 1), string.sub(stored, 1, cut - 1), key, place, task)
      turns[n], turns[n + 1] = key, 'r' .. place .. id
      passed = passed + 1
    else
      lost[#lost + 1] = whose[i]
    end
  end
  if passed > 0 then
    redis.call('HSET', INDEX, unpack(entries))
    redis.call('HSET', TURNS, unpack(turns))
  end
  if #lost > 0 then passed = passed + pass_turns(lost) end  -- something else deleted it
  return passed
end

-- Makes one that is scheduled ready. False: it was not.
local function make_ready(id)
  local body, expires = unhold(id)
  if not body then return false end
  local noted = redis.call('HGET', KEYED, id)
  if noted then
    local key, place, task = key_in(noted)
    redis.call('HDEL', KEYED, id)
    redis.call('HSET', INDEX, id, append_keyed(id, body, expires, key, place, task))
    if holder_of(redis.call('HGET', TURNS, key)) == id then give_turn(key, 'r', place, id) end
  else
    redis.call('HSET', INDEX, id, append(body, expires))
  end
  return true
end

-- The one that had the turn is gone from its stream, with its key: whose it was is known by its entry alone.
local function pass_turn_of_lost(entry)
  local turns, keys = redis.call('HGETALL', TURNS), {}
  for i = 1, #turns, 2 do
    local id = holder_of(turns[i + 1])
    if string.sub(turns[i + 1], 2, 41) == place_of(entry) or id ~= '' and redis.call('HGET', INDEX, id) == entry then
      keys[#keys + 1] = turns[i]
    end
  end
  pass_turns(keys)
end
