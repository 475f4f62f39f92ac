-- Make dead jobs ready again, under their old ids.
-- KEYS: index ending given stats
-- USES: wake append letters
-- ARGV: clock, then ids
-- Returns the ids that were dead and are ready now.
local replayed = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local body = exhume(id)
  if body then
    redis.call('HSET', INDEX, id, append(body, 0))
    redis.call('DEL', ENDING .. id)
    redis.call('PERSIST', GIVEN .. id)
    replayed[#replayed + 1] = id
  end
end
if #replayed > 0 then wake() end
return replayed
