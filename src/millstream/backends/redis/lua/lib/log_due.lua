-- KEYS: log_due
-- Returns the number of delayed events that are due but not published yet.
local function due_in_log() return redis.call('ZCOUNT', LOG_DUE, '-inf', now) end
