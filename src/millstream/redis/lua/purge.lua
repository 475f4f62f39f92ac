-- Delete dead letters.
-- USES: members letters
-- ARGV: clock, then ids
-- Returns the ids that were dead and are gone now.
local purged = {}
for i = 2, #ARGV do
  local letter = letter_of(ARGV[i])
  if letter then
    exhume(letter)
    purged[#purged + 1] = ARGV[i]
  end
end
return purged
