-- Take all mail out of a box.
-- KEYS: box
-- ARGV: clock, name
-- Returns them, the first one first.
local found = redis.call('LRANGE', BOX .. ARGV[2], 0, -1)
if #found > 0 then redis.call('DEL', BOX .. ARGV[2]) end
return found
