-- Make the consumer group of a queue's stream again.
-- KEYS: stream
-- ARGV: clock, group
-- Returns {1: it is made, 0: it was there, how many entries there are}.
local made = redis.pcall('XGROUP', 'CREATE', STREAM, ARGV[2], '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
return { made.err and 0 or 1, redis.call('XLEN', STREAM) }
