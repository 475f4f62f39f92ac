-- KEYS: meta log log_held log_due log_meta topic
-- What a group's claim does for its topic: publish what is due, trim what all have settled.

local function publish_due()
  local due = redis.call('ZRANGEBYSCORE', LOG_DUE, '-inf', now, 'LIMIT', 0, 200)
  for _, id in ipairs(due) do
    local stored = redis.call('HGET', LOG_HELD, id)
    if stored then
      local cut = string.find(stored, '\n', 1, true)
      local expires, body = string.sub(stored, 1, cut - 1), string.sub(stored, cut + 1)
      if expires == '0' then
        redis.call('XADD', LOG, '*', 'd', body)
      else
        redis.call('XADD', LOG, '*', 'd', body, 'x', expires)
      end
      redis.call('HDEL', LOG_HELD, id)
    end
    redis.call('ZREM', LOG_DUE, id)
  end
  if #due > 0 then wake_groups() end
end

local function before(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then return tonumber(a_ms) < tonumber(b_ms) end
  return tonumber(a_seq) < tonumber(b_seq)
end

-- The first entry a group has not settled, and the id before it.
local function unsettled(name, last)
  local first = redis.call('XPENDING', LOG, name)[2]
  if not first then
    local ms, seq = string.match(last, '^(%d+)-(%d+)$')
    return string.format('%s-%.0f', ms, seq + 1), last
  end
  local ms, seq = string.match(first, '^(%d+)-(%d+)$')
  if seq == '0' then return first, string.format('%.0f-18446744073709551615', ms - 1) end
  return first, string.format('%s-%.0f', ms, seq - 1)
end

-- Removes what every group has settled, but for what retention keeps; at most once a second, whoever claims. Each group's place
-- is noted on the way, so that one whose place is lost goes on from there.
local function trim()
  local meta = redis.call('HMGET', LOG_META, 'trimmed', 'keep_ms', 'keep_count')
  local since = now - tonumber(meta[1] or '0')
  if since >= 0 and since < 1000 then return end
  redis.call('HSET', LOG_META, 'trimmed', now)
  local upto
  for name, last in pairs(places()) do
    local first, noted = unsettled(name, last)
    if not upto or before(first, upto) then upto = first end
    if redis.call('SISMEMBER', GROUPS, name) == 1 then redis.call('HSET', key_of(name, 'meta'), 'cursor', noted) end
  end
  if not upto then return end
  if meta[2] then
    local oldest = string.format('%.0f-0', now - meta[2])
    if before(oldest, upto) then upto = oldest end
  end
  local most = meta[3] and math.min(20000, redis.call('XLEN', LOG) - meta[3]) or 20000
  if most <= 0 then return end
  -- Whole nodes are cheap to remove; what is left of the last one is removed exactly.
  if redis.call('XTRIM', LOG, 'MINID', '~', upto, 'LIMIT', most) == 0 and not meta[3] then
    redis.call('XTRIM', LOG, 'MINID', upto)
  end
end
