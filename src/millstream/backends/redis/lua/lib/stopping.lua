-- KEYS: turns blocked stopped stopped_letters sweeps meta
-- Stopped keys: one of their messages is dead, and all later ones become dead letters too, until the key is cleared.
-- `stopped_letters` holds these letters by key and position. `sweeps` holds keys with more blocked messages than one call may
-- make dead letters (SWEEP). Uses the script's local `id_ttl_ms`.
local SWEEP = 500
local stopped_letters = 0  -- dead letters written by this call
local topic = string.match(STREAM, '^{[^:]*:t:([^:}]+)')  -- stands for the task, which events do not have

-- Encodes a dead letter of a message that died because of its key, as a `DeadLetter`: reason, (type, text, traceback), 0, 0, 0.
local function order_letter(reason, text)
  local function packed(s)
    if #s < 32 then return string.char(160 + #s) .. s end
    if #s < 256 then return '\217' .. string.char(#s) .. s end
    return '\218' .. string.char(math.floor(#s / 256), #s % 256) .. s
  end
  return '\149' .. packed(reason) .. '\147' .. packed('OrderError') .. packed(text) .. packed('') .. '\0\0\0'
end

-- Makes a message of a stopped key a dead letter.
local function dead_letter_stopped(key, position, id, task, body, source)
  local by = string.match(redis.call('HGET', STOPPED, key) or '', ' (.*)$') or '?'
  local text = string.format("an earlier message with this key failed (%s). Clear the key to resume", by)
  redis.call('ZADD', STOPPED_LETTERS, 0, of_key(key) .. position .. id)
  dead_letter(id, topic or task or '', body, order_letter('stopped', text), source, key, position)
  ended(id, '', 0, id_ttl_ms, true)
  stopped_letters = stopped_letters + 1
end

-- Makes at most SWEEP blocked messages of a stopped key dead letters. False: there may be more.
local function sweep(key)
  local begins = of_key(key)
  local members = redis.call('ZRANGEBYLEX', BLOCKED, '[' .. begins, '(' .. begins .. '\255', 'LIMIT', 0, SWEEP)
  for _, member in ipairs(members) do
    local position, id = split_member(member, begins)
    local body, _, task = unblock(member)
    if body then dead_letter_stopped(key, position, id, task, body, '') end
  end
  return #members < SWEEP
end

-- Stops a key because one of its messages died.
local function stop_key(key, position, id)
  redis.call('HSET', TURNS, key, 's')
  redis.call('HSETNX', STOPPED, key, now .. ' ' .. id)
  redis.call('ZADD', STOPPED_LETTERS, 0, of_key(key) .. position .. id)
  if not sweep(key) then
    redis.call('RPUSH', SWEEPS, key)
    redis.call('HSET', META, 'sweep', 1)
  end
end
