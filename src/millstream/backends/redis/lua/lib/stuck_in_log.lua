-- KEYS: log_held log_due
-- Part of `around`: delayed events without a due time, because `log_due` was lost. They are due now. Returns the number found.
local function find_stuck_in_log()
  if redis.call('HLEN', LOG_HELD) <= redis.call('ZCARD', LOG_DUE) then return 0 end
  local found = 0
  for _, id in ipairs(redis.call('HRANDFIELD', LOG_HELD, PAGE)) do found = found + redis.call('ZADD', LOG_DUE, 'NX', now, id) end
  return found
end
