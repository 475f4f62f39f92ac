-- Make scheduled jobs ready now.
-- KEYS: due
-- USES: wake append members keyed turns
-- ARGV: clock, then ids
-- Returns the ids that were scheduled and are ready now.
local promoted = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  if redis.call('HGET', INDEX, id) == 'h' and make_ready(id) then
    redis.call('ZREM', DUE, id)
    promoted[#promoted + 1] = id
  end
end
if #promoted > 0 then wake() end
return promoted
