-- Make scheduled jobs ready now.
-- KEYS: due
-- USES: wake append members keyed turns held answers
-- ARGV: clock, request, then ids
-- Returns one digit for each id: 1 if the job was scheduled and is ready now, else 0.
local known = answered(ARGV[2])
if known then return known end
local moved, promoted = {}, 0
for i = 3, #ARGV do
  local id = ARGV[i]
  if redis.call('HGET', INDEX, id) == 'h' and make_ready(id) then
    redis.call('ZREM', DUE, id)
    promoted = promoted + 1
    moved[i - 2] = 1
  else
    moved[i - 2] = 0
  end
end
if promoted == 0 then return table.concat(moved) end
wake()
return answer(ARGV[2], table.concat(moved))
