-- Count the scheduled jobs that are due but not ready yet. For a group, delayed events of its topic count too.
-- KEYS: due
-- USES: clock
-- OF A GROUP: log_due
-- FLAGS: no-writes
-- ARGV: clock
-- Returns the number.
local count = redis.call('ZCOUNT', DUE, '-inf', now)
if in_group then count = count + due_in_log() end
return count
