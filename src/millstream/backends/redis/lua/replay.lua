-- Replay dead letters: make the jobs ready again under their old ids. A job with a key returns to its old position. Dead
-- letters of a stopped key are not changed.
-- KEYS: index ending given stats stopped
-- USES: wake append members keyed turns held handling letters answers
-- ARGV: clock, request, then ids
-- Returns one digit for each id: 1 if the job was dead and is ready or blocked now, else 0.
local known = answered(ARGV[2])
if known then return known end
local topic = string.match(STREAM, '^{[^:]*:t:([^:}]+)')
local moved, replayed, keys, seen = {}, 0, {}, {}
for i = 3, #ARGV do
  local id = ARGV[i]
  local letter = letter_of(id)
  local turn = letter and letter.k and redis.call('HGET', TURNS, letter.k)
  if letter and turn ~= 's' and not (letter.k and redis.call('HEXISTS', STOPPED, letter.k) == 1) then
    exhume(letter)
    if letter.k then
      block(id, letter.d, '0', letter.k, letter.o, topic and '' or letter.t)
      if not turn and not seen[letter.k] then
        keys[#keys + 1], seen[letter.k] = letter.k, true
      end
    else
      redis.call('HSET', INDEX, id, append(letter.d, '0'))
    end
    redis.call('DEL', ENDING .. id)
    redis.call('PERSIST', GIVEN .. id)
    replayed = replayed + 1
    moved[i - 2] = 1
  else
    moved[i - 2] = 0
  end
end
if #keys > 0 then pass_turns(keys) end
if replayed == 0 then return table.concat(moved) end
wake()
return answer(ARGV[2], table.concat(moved))
