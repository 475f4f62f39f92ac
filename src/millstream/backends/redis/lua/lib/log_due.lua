-- KEYS: log_due
-- How many delayed events are due and not published yet.
local function due_in_log() return redis.call('ZCOUNT', LOG_DUE, '-inf', now) end
