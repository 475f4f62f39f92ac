-- How many scheduled jobs are due and not ready yet; in a group also of its topic's delayed events.
-- KEYS: due
-- USES: clock
-- OF A GROUP: log_due
-- FLAGS: no-writes
-- ARGV: clock
local count = redis.call('ZCOUNT', DUE, '-inf', now)
if in_group then count = count + due_in_log() end
return count
