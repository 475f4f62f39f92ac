-- KEYS: turns blocked keyed held index
-- Whose turn it is. Of each key that is not free: 'r' (it is out, or ready) or 'b' (it waits for a retry), then the place and the id
-- of the one that has the turn; or 's', stopped.
local function turn_of(key)
  local turn = redis.call('HGET', TURNS, key)
  if not turn then return nil end
  return string.sub(turn, 1, 1), string.sub(turn, 42), string.sub(turn, 2, 41)
end

local function give_turn(key, state, place, id) redis.call('HSET', TURNS, key, state .. place .. id) end

-- Takes one that is held out of there: its body and expiry, or nothing.
local function unhold(id)
  local stored = redis.call('HGET', HELD, id)
  if not stored then return nil end
  redis.call('HDEL', HELD, id)
  redis.call('HDEL', KEYED, id)
  local cut = string.find(stored, '\n', 1, true)
  return string.sub(stored, cut + 1), string.sub(stored, 1, cut - 1)
end

-- The first blocked one of a key becomes ready, with the turn; if there is none the key is free. True: there was one.
local function pass_turn(key)
  local begins = of_key(key)
  while true do
    local member = redis.call('ZRANGEBYLEX', BLOCKED, '[' .. begins, '(' .. begins .. '\255', 'LIMIT', 0, 1)[1]
    if not member then
      redis.call('HDEL', TURNS, key)
      return false
    end
    redis.call('ZREM', BLOCKED, member)
    local place, id = split_member(member, begins)
    local _, _, task = key_noted(id)
    local body, expires = unhold(id)
    if body then
      redis.call('HSET', INDEX, id, append_keyed(id, body, expires, key, place, task))
      give_turn(key, 'r', place, id)
      return true
    end
  end
end

-- Makes one that is scheduled ready. False: it was not.
local function make_ready(id)
  local key, place, task = key_noted(id)
  local body, expires = unhold(id)
  if not body then return false end
  if key then
    redis.call('HSET', INDEX, id, append_keyed(id, body, expires, key, place, task))
    local _, holder = turn_of(key)
    if holder == id then give_turn(key, 'r', place, id) end
  else
    redis.call('HSET', INDEX, id, append(body, expires))
  end
  return true
end

-- The one that had the turn is gone from its stream, with its key: whose it was is known by its entry alone.
local function pass_turn_of_lost(entry)
  local turns = redis.call('HGETALL', TURNS)
  for i = 1, #turns, 2 do
    local place, id = string.sub(turns[i + 1], 2, 41), string.sub(turns[i + 1], 42)
    if place == place_of(entry) or id ~= '' and redis.call('HGET', INDEX, id) == entry then pass_turn(turns[i]) end
  end
end
