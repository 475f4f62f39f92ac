-- Delete dead letters.
-- KEYS: given
-- USES: members handling letters answers tell ending
-- ARGV: clock, request, then ids
-- Returns one digit for each id: 1 if the job was dead and its dead letter is deleted now, else 0.
local known = answered(ARGV[2])
if known then return known end
local moved, purged = {}, 0
for i = 3, #ARGV do
  local letter = letter_of(ARGV[i])
  if letter then
    exhume(letter)
    local known_id = redis.call('GET', GIVEN .. ARGV[i])
    if known_id and string.sub(known_id, -3) == '\nt0' then free_id(ARGV[i], known_id) end
    purged = purged + 1
  end
  moved[i - 2] = letter and 1 or 0
end
if purged == 0 then return table.concat(moved) end
return answer(ARGV[2], table.concat(moved))
