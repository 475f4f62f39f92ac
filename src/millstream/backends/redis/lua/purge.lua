-- Delete dead letters.
-- USES: members letters answers
-- ARGV: clock, request, then ids
-- Returns one digit each: 1 if it was dead and is gone now, else 0.
local known = answered(ARGV[2])
if known then return known end
local moved, purged = {}, 0
for i = 3, #ARGV do
  local letter = letter_of(ARGV[i])
  if letter then
    exhume(letter)
    purged = purged + 1
  end
  moved[i - 2] = letter and 1 or 0
end
if purged == 0 then return table.concat(moved) end
return answer(ARGV[2], table.concat(moved))
