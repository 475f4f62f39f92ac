-- Make dead jobs ready again, under their old ids; those of a key that is stopped stay as they are.
-- KEYS: index ending given stats turns
-- USES: wake append members keyed letters
-- ARGV: clock, then ids
-- Returns the ids that were dead and are ready now.
local replayed = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local letter = letter_of(id)
  if letter and not (letter.k and redis.call('HGET', TURNS, letter.k) == 's') then
    exhume(letter)
    if letter.k then
      redis.call('HSET', INDEX, id, append_keyed(id, letter.d, 0, letter.k, letter.o, letter.t))
    else
      redis.call('HSET', INDEX, id, append(letter.d, 0))
    end
    redis.call('DEL', ENDING .. id)
    redis.call('PERSIST', GIVEN .. id)
    replayed[#replayed + 1] = id
  end
end
if #replayed > 0 then wake() end
return replayed
