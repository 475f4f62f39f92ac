-- Delete dead letters.
-- USES: letters
-- ARGV: clock, then ids
-- Returns the ids that were dead and are gone now.
local purged = {}
for i = 2, #ARGV do
  if exhume(ARGV[i]) then purged[#purged + 1] = ARGV[i] end
end
return purged
