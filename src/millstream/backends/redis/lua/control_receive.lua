-- Receive and delete all messages sent to a name.
-- KEYS: control
-- ARGV: clock, name
-- Returns the messages, oldest first.
local found = redis.call('LRANGE', CONTROL .. ARGV[2], 0, -1)
if #found > 0 then redis.call('DEL', CONTROL .. ARGV[2]) end
return found
