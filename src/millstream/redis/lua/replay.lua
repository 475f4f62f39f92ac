-- Make dead jobs ready again, under their old ids; those that have a key at their old places. Those of a key that is stopped stay as
-- they are.
-- KEYS: index ending given stats
-- USES: wake append members keyed turns letters
-- ARGV: clock, then ids
-- Returns the ids that were dead and are ready now, or wait for the turn of their key.
local topic = string.match(STREAM, '^{[^:]*:t:([^:}]+)')
local replayed, keys, seen = {}, {}, {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local letter = letter_of(id)
  local turn = letter and letter.k and redis.call('HGET', TURNS, letter.k)
  if letter and turn ~= 's' then
    exhume(letter)
    if letter.k then
      block(id, letter.d, '0', letter.k, letter.o, topic and '' or letter.t)
      if not turn and not seen[letter.k] then
        keys[#keys + 1], seen[letter.k] = letter.k, true
      end
    else
      redis.call('HSET', INDEX, id, append(letter.d, 0))
    end
    redis.call('DEL', ENDING .. id)
    redis.call('PERSIST', GIVEN .. id)
    replayed[#replayed + 1] = id
  end
end
if #keys > 0 then pass_turns(keys) end
if #replayed > 0 then wake() end
return replayed
