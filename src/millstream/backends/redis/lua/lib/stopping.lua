-- KEYS: turns blocked stopped stopped_letters sweeps meta
-- Keys that are stopped, since one of theirs is dead: all that follows dies too, until they are cleared. `stopped_letters` are these letters, by
-- key and position; `sweeps` are keys of which more were blocked than one go may dead_letter. Uses the script's local `id_ttl_ms`.
local SWEEP = 500
local stopped_letters = 0  -- how many have died
local topic = string.match(STREAM, '^{[^:]*:t:([^:}]+)')  -- whose events have no task

-- What a dead letter says that died for its key. Its form is that of `DeadLetter`: reason, (type, text, traceback), 0, 0, 0.
local function order_letter(reason, text)
  local function packed(s)
    if #s < 32 then return string.char(160 + #s) .. s end
    if #s < 256 then return '\217' .. string.char(#s) .. s end
    return '\218' .. string.char(math.floor(#s / 256), #s % 256) .. s
  end
  return '\149' .. packed(reason) .. '\147' .. packed('OrderError') .. packed(text) .. packed('') .. '\0\0\0'
end

-- One of a stopped key dies.
local function dead_letter_stopped(key, position, id, task, body, source)
  local by = string.match(redis.call('HGET', STOPPED, key) or '', ' (.*)$') or '?'
  local text = string.format("%s of the same key is dead, and this follows it: its key goes on when it is cleared", by)
  redis.call('ZADD', STOPPED_LETTERS, 0, of_key(key) .. position .. id)
  dead_letter(id, topic or task or '', body, order_letter('stopped', text), source, key, position)
  ended(id, '', 0, id_ttl_ms, true)
  stopped_letters = stopped_letters + 1
end

-- What is blocked of a stopped key dies, as much as one go may dead_letter. False: there is more.
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

-- One of it died, and the rules say so.
local function stop_key(key, position, id)
  redis.call('HSET', TURNS, key, 's')
  redis.call('HSETNX', STOPPED, key, now .. ' ' .. id)
  redis.call('ZADD', STOPPED_LETTERS, 0, of_key(key) .. position .. id)
  if not sweep(key) then
    redis.call('RPUSH', SWEEPS, key)
    redis.call('HSET', META, 'sweep', 1)
  end
end
