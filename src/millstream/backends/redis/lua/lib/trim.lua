-- KEYS: log log_meta groups
-- Removes events from the log that every group has settled and that retention does not keep. Runs at most once a second for all
-- consumers together.
local GO = 20000

-- Removes at most `most` entries up to `last`, and at most about GO per call. False: there may be more.
local function drop(last, most)
  local go = math.min(most, GO)
  -- Whole nodes of the stream are cheap to remove. The rest, in the last node, is removed exactly.
  local dropped = redis.call('XTRIM', LOG, 'MINID', '~', last, 'LIMIT', go)
  if dropped > go / 2 then return dropped == most end
  local rest = redis.call('XRANGE', LOG, '-', last, 'COUNT', math.min(most - dropped, 200))
  if #rest > 0 then
    local ms, seq = number(rest[#rest][1])
    redis.call('XTRIM', LOG, 'MINID', string.format('%.0f-%.0f', ms, seq + 1))
  end
  return #rest < 200
end

-- Returns the entry up to which every group has settled all, or nil if there is no group. Also stores the cursor of each
-- group, so that a group that loses its position still keeps its events in the log and continues there.
local function settled_by_all()
  local at, lowest = group_positions(), nil
  for name, last in pairs(at) do at[name] = settled_by(name, last) end
  for _, name in ipairs(redis.call('SMEMBERS', GROUPS)) do
    if at[name] then
      redis.call('HSET', key_of(name, 'meta'), 'cursor', at[name])
    else
      at[name] = noted(name) or '0-0'
    end
  end
  for _, position in pairs(at) do
    if not lowest or before(position, lowest) then lowest = position end
  end
  return lowest
end

-- False: there is more to remove than one call may.
local function trim()
  local meta = redis.call('HMGET', LOG_META, 'trimmed', 'keep_ms', 'keep_count')
  local since = now - tonumber(meta[1] or '0')
  if since >= 0 and since < 1000 then return true end
  local settled, all = settled_by_all(), true
  if meta[2] or meta[3] then
    settled = settled or '18446744073709551615' .. LAST_SEQ
    if meta[2] then
      local old = string.format('%.0f', math.max(0, now - meta[2] - 1)) .. LAST_SEQ
      all = drop(before(old, settled) and old or settled, math.huge)
    end
    local excess = meta[3] and redis.call('XLEN', LOG) - meta[3] or 0
    if excess > 0 then all = drop(settled, excess) and all end
  elseif settled then
    all = drop(settled, math.huge)
  end
  if all then redis.call('HSET', LOG_META, 'trimmed', now) end
  return all
end
