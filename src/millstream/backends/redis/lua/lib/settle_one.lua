-- KEYS: index keyed turns meta
-- Part of a settle: the effect of each kind of outcome on one message, whose entry is already gone. `key` is nil if it has
-- none.

-- Schedules the message to run again. It keeps the turn of its key. True if it is due before all others.
local function retry(id, body, delay_ms, expires, key, position)
  if in_group then supersede(id) end
  local first = schedule(id, now + delay_ms, expires, body)
  if key then
    redis.call('HSET', KEYED, id, order_note(position, '', key))
    local turn = redis.call('HGET', TURNS, key)
    if turn and string.sub(turn, 2, 41) == position then give_turn(key, 'b', position, id) end
  end
  return first
end

-- Makes the message a dead letter, and stops its key or passes the turn on. Returns the number of messages that became ready.
local function die(id, task, body, letter, source, key, position)
  if in_group then supersede(id) end
  dead_letter(id, task, body, letter, source, key, position)
  if not key then return 0 end
  if redis.call('HGET', META, 'stop') ~= '1' then return pass_on({ position }, { key }) end
  stop_key(key, position, id)
  return 0
end

-- Ends a done or expired message, and passes the turn on. Returns the number of messages that became ready.
local function finish(id, entry, key, position)
  if not in_group or redis.call('HGET', INDEX, id) == entry then redis.call('HDEL', INDEX, id) end
  return key and pass_on({ position }, { key }) or 0
end
