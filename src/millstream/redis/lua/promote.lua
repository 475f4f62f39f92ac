-- Make scheduled jobs ready now.
-- KEYS: index held due
-- USES: wake append
-- ARGV: clock, then ids
-- Returns the ids that were scheduled and are ready now.
local promoted = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local stored = redis.call('HGET', HELD, id)
  if stored then
    local cut = string.find(stored, '\n', 1, true)
    redis.call('HSET', INDEX, id, append(string.sub(stored, cut + 1), string.sub(stored, 1, cut - 1)))
    redis.call('HDEL', HELD, id)
    redis.call('ZREM', DUE, id)
    promoted[#promoted + 1] = id
  end
end
if #promoted > 0 then wake() end
return promoted
