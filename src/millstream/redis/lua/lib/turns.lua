-- KEYS: turns blocked keyed held index
-- Whose turn it is. Of each key that is not free: a state, the place of the one that has the turn, who claimed it (nobody, if it is
-- ready), and behind a newline its id. States: 'r' it is out, or ready; 'q' so it is, and others are blocked behind it; 'b' it
-- waits for a retry. Of a stopped key only 's'. Of one that is blocked the index says 'p' and then as `keyed` of one that is scheduled.
local function turn(state, place, consumer, id) return state .. place .. consumer .. '\n' .. id end

local function holder_of(turn)
  local cut = turn and string.find(turn, '\n', 42, true)
  return cut and string.sub(turn, cut + 1)
end

local function claimed_by(turn, consumer) return string.sub(turn, 42, 42 + #consumer) == consumer .. '\n' end

-- Who claimed it has handed it back, or another has it now.
local function turn_of(turn, consumer) return string.sub(turn, 1, 41) .. consumer .. '\n' .. holder_of(turn) end

-- The first blocked ones of a key, as members.
local function first_blocked(key, count)
  local begins = of_key(key)
  return redis.call('ZRANGEBYLEX', BLOCKED, '[' .. begins, '(' .. begins .. '\255', 'LIMIT', 0, count), begins
end

-- Takes one that is held out of there: its body and expiry, or nothing.
local function unhold(id)
  local stored = redis.call('HGET', HELD, id)
  if not stored then return nil end
  redis.call('HDEL', HELD, id)
  local cut = string.find(stored, '\n', 1, true)
  return string.sub(stored, cut + 1), string.sub(stored, 1, cut - 1)
end

-- Of each of these keys the first blocked one becomes ready, with the turn, and some behind it, which follow it if who claims it may
-- have several in a row; a key of which none is blocked is free. How many keys go on. (Hot: what can be done for all together is.)
local in_a_row = 1  -- the script may know better
local pass_turns
function pass_turns(keys)
  local free, members, ids, whose, index, turns, lost, passed = {}, {}, {}, {}, {}, {}, {}, 0
  local more, first, run = {}, {}, math.max(1, math.min(in_a_row, math.floor(512 / #keys)))
  for _, key in ipairs(keys) do
    local found, begins = first_blocked(key, run + 1)
    more[key] = #found > run
    found[run + 1] = nil
    for _, member in ipairs(found) do
      local n = #members + 1
      members[n], whose[n], ids[n] = member, key, string.sub(member, #begins + 41)
    end
    if #found == 0 then free[#free + 1] = key end
  end
  if #free > 0 then redis.call('HDEL', TURNS, unpack(free)) end
  if #members == 0 then return 0 end
  local held, places = redis.call('HMGET', HELD, unpack(ids)), redis.call('HMGET', INDEX, unpack(ids))
  redis.call('ZREM', BLOCKED, unpack(members))
  redis.call('HDEL', HELD, unpack(ids))
  for i, id in ipairs(ids) do
    local stored, key = held[i], whose[i]
    if stored and places[i] then
      local cut, _, place, task = string.find(stored, '\n', 1, true), key_in(string.sub(places[i], 2))
      local body, expires = string.sub(stored, cut + 1), string.sub(stored, 1, cut - 1)
      index[#index + 1] = id
      index[#index + 1] = append_keyed(id, body, expires, key, place, task, first[key])
      if not first[key] then
        first[key], passed = true, passed + 1
        turns[2 * passed - 1], turns[2 * passed] = key, turn(more[key] and 'q' or 'r', place, '', id)
      end
    end
  end
  if passed > 0 then
    redis.call('HSET', INDEX, unpack(index))
    redis.call('HSET', TURNS, unpack(turns))
  end
  for _, key in ipairs(keys) do  -- something else deleted them
    if more[key] and not first[key] then lost[#lost + 1] = key end
  end
  if #lost > 0 then passed = passed + pass_turns(lost) end
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
    if holder_of(redis.call('HGET', TURNS, key)) == id then
      redis.call('HSET', TURNS, key, turn(#first_blocked(key, 1) > 0 and 'q' or 'r', place, '', id))
    end
  else
    redis.call('HSET', INDEX, id, append(body, expires))
  end
  return true
end
