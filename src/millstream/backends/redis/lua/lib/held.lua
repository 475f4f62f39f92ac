-- KEYS: held blocked keyed index turns
-- Messages in `held`: scheduled, or blocked until they get the turn of their key. Uses `keyed`, `turns` and, for make_ready,
-- `append`.

-- Removes a scheduled message from `held`. Returns its body and expiry, or nil if it is not there.
local function unhold(id)
  local stored = redis.call('HGET', HELD, id)
  if not stored then return nil end
  redis.call('HDEL', HELD, id)
  local cut = string.find(stored, '\n', 1, true)
  return string.sub(stored, cut + 1), string.sub(stored, 1, cut - 1)
end

-- Blocks a message at its position, until it gets the turn of its key.
local function block(id, body, expires, key, position, task)
  local member = of_key(key) .. position .. id
  redis.call('ZADD', BLOCKED, 0, member)
  redis.call('HSET', HELD, member, expires .. '\n' .. task .. '\n' .. body)
  redis.call('HSET', INDEX, id, 'p' .. order_note(position, task, key))
end

-- Makes a scheduled message ready. False: it was not scheduled.
local function make_ready(id)
  local body, expires = unhold(id)
  if not body then return false end
  local noted = redis.call('HGET', KEYED, id)
  if noted then
    local key, position, task = key_in(noted)
    redis.call('HDEL', KEYED, id)
    redis.call('HSET', INDEX, id, append_keyed(id, body, expires, key, position, task))
    if has_turn(redis.call('HGET', TURNS, key), position, id) then give_turn(key, 'r', position, id) end
  else
    redis.call('HSET', INDEX, id, append(body, expires))
  end
  return true
end
