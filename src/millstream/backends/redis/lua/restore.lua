-- Recreate the consumer group of a queue's stream.
-- KEYS: stream
-- ARGV: clock, group
-- Returns {1 if it was created or 0 if it existed, number of entries}.
local made = redis.pcall('XGROUP', 'CREATE', STREAM, ARGV[2], '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
return { made.err and 0 or 1, redis.call('XLEN', STREAM) }
