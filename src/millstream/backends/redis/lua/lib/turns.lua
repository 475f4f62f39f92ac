-- KEYS: turns blocked held index
-- Turns. For each key that is not free, `turns` holds 'r' (the message is ready or running) or 'b' (it waits for a retry),
-- then the position and id of the message that has the turn; or 's' (the key is stopped). `held` stores a blocked message by
-- its member: expiry, task and body, separated by newlines. Its index value is 'p' and the order note (see `keyed`).
local function has_turn(turn, position, id) return turn and string.sub(turn, 2) == position .. id end

local function give_turn(key, state, position, id) redis.call('HSET', TURNS, key, state .. position .. id) end

-- Returns the body, expiry and task of a blocked message from its value in `held`.
local function blocked_in(stored)
  if string.sub(stored, 1, 3) == '0\n\n' then return string.sub(stored, 4), '0', '' end  -- an event that does not expire
  local cut = string.find(stored, '\n', 1, true)
  local again = string.find(stored, '\n', cut + 1, true)
  return string.sub(stored, again + 1), string.sub(stored, 1, cut - 1), string.sub(stored, cut + 1, again - 1)
end

-- Removes a blocked message. Returns its body, expiry and task, or nil if it is not there.
local function unblock(member)
  redis.call('ZREM', BLOCKED, member)
  local stored = redis.call('HGET', HELD, member)
  if not stored then return nil end
  redis.call('HDEL', HELD, member)
  return blocked_in(stored)
end

-- Gives the turn of each key to its first blocked message, which becomes ready. A key without blocked messages becomes free.
-- Returns the number of messages that became ready. (Hot path: commands are batched over all keys.)
local pass_turns
function pass_turns(keys, again)
  local free, members, whose, positions, index, turns, lost, passed = {}, {}, {}, {}, {}, {}, {}, 0
  for _, key in ipairs(keys) do
    local begins = of_key(key)
    local member = redis.call('ZRANGEBYLEX', BLOCKED, '[' .. begins, '(' .. begins .. '\255', 'LIMIT', 0, 1)[1]
    if member then
      local n = #members + 1
      members[n], whose[n], positions[n] = member, key, string.sub(member, #begins + 1)
    else
      free[#free + 1] = key
    end
  end
  if #free > 0 then redis.call('HDEL', TURNS, unpack(free)) end
  if #members == 0 then return 0 end
  local held = redis.call('HMGET', HELD, unpack(members))
  redis.call('ZREM', BLOCKED, unpack(members))
  redis.call('HDEL', HELD, unpack(members))
  for i, key in ipairs(whose) do
    if held[i] then
      local body, expires, task = blocked_in(held[i])
      local position, id = string.sub(positions[i], 1, 40), string.sub(positions[i], 41)
      local n = 2 * passed + 1
      index[n], index[n + 1] = id, append_keyed(id, body, expires, key, position, task)
      turns[n], turns[n + 1] = key, 'r' .. positions[i]
      passed = passed + 1
    elseif again == 4 then
      -- Give it the turn anyway: `around` finds that the message is gone, and passes the turn on.
      redis.call('HSET', TURNS, key, 'b' .. positions[i])
    else
      lost[#lost + 1] = key  -- another program deleted it
    end
  end
  if passed > 0 then
    redis.call('HSET', INDEX, unpack(index))
    redis.call('HSET', TURNS, unpack(turns))
  end
  if #lost > 0 then passed = passed + pass_turns(lost, (again or 0) + 1) end
  return passed
end
