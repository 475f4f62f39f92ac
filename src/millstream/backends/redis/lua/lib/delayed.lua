-- KEYS: log_held log_due log_keyed
-- Publishes delayed events that are due.
local function publish_due()
  local due = redis.call('ZRANGEBYSCORE', LOG_DUE, '-inf', now, 'LIMIT', 0, 200)
  for _, id in ipairs(due) do
    local stored = redis.call('HGET', LOG_HELD, id)
    if stored then
      local cut = string.find(stored, '\n', 1, true)
      local key = redis.call('HGET', LOG_KEYED, id) or nil
      record(id, string.sub(stored, cut + 1), string.sub(stored, 1, cut - 1), key)
      redis.call('HDEL', LOG_HELD, id)
      if key then redis.call('HDEL', LOG_KEYED, id) end
    end
    redis.call('ZREM', LOG_DUE, id)
  end
  if #due > 0 then wake_groups() end
end
