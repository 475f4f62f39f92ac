-- KEYS: stream meta log log_held log_due log_meta topic
-- A group's own stream is fed from its topic's log, as it is claimed. On the way: publish what is due, trim what all have.

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

-- Removes what every group was given, but for what retention keeps; at most once a second, whoever claims.
local function trim()
  local meta = redis.call('HMGET', LOG_META, 'trimmed', 'keep_ms', 'keep_count')
  local since = now - tonumber(meta[1] or '0')
  if since >= 0 and since < 1000 then return end
  redis.call('HSET', LOG_META, 'trimmed', now)
  local lowest
  for _, at in pairs(cursors()) do
    if not lowest or before(at, lowest) then lowest = at end
  end
  if not lowest then return end
  local ms, seq = string.match(lowest, '^(%d+)-(%d+)$')
  local upto = ms .. '-' .. string.format('%.0f', seq + 1)
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

-- Claims up to `count` of what the group was not given yet. Returns the entries under the ids they have in its own stream.
local function feed(group, consumer, count)
  local name = string.sub(STREAM, #TOPIC + 4, -3)  -- <topic>:g:<name>:s
  local read = redis.pcall('XREADGROUP', 'GROUP', name, 'feed', 'COUNT', count, 'NOACK', 'STREAMS', LOG, '>')
  if read and read.err then  -- its place in the log is gone, but for our note of it
    redis.call('XGROUP', 'CREATE', LOG, name, redis.call('HGET', META, 'cursor') or '0', 'MKSTREAM')
    read = redis.call('XREADGROUP', 'GROUP', name, 'feed', 'COUNT', count, 'NOACK', 'STREAMS', LOG, '>')
  end
  if not read then return {} end
  local fresh, claim = read[1][2], { STREAM, group, consumer, 0 }
  redis.call('HSET', META, 'cursor', fresh[#fresh][1])
  for _, entry in ipairs(fresh) do
    entry[1] = redis.call('XADD', STREAM, '*', unpack(entry[2]))
    claim[#claim + 1] = entry[1]
  end
  local last = claim[#claim]
  for _, option in ipairs({ 'RETRYCOUNT', 1, 'FORCE', 'JUSTID', 'LASTID', last }) do claim[#claim + 1] = option end
  redis.call('XCLAIM', unpack(claim))
  return fresh
end
