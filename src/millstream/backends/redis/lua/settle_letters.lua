-- Settle deliveries of dead letters. Handled letters leave the list. The others stay in it, and are delivered again later or
-- never.
-- KEYS: stream leases index stats stopped_letters due handling
-- USES: clock wake members handling
-- ARGV: clock, group, consumer, number of handled letters, then their refs, then their ids, then three for each other letter:
--   ref, ms until the next attempt ('': there is none), note ('': none)
-- Returns the number of deliveries that this call settled, or -1 if the consumer has no lease.
local group, consumer, handled = ARGV[2], ARGV[3], tonumber(ARGV[4])
if not redis.call('ZSCORE', LEASES, consumer) then return -1 end
local done, left, stopped_letters = 0, 0, redis.call('EXISTS', STOPPED_LETTERS) == 1
for i = 5, 4 + handled do
  local ref, id = ARGV[i], ARGV[i + handled]
  if redis.call('XACK', STREAM, group, ref) == 1 then
    if stopped_letters then
      local words, letter = {}, redis.call('XRANGE', STREAM, ref, ref)[1] or { ref, {} }
      for k = 1, #letter[2], 2 do words[letter[2][k]] = letter[2][k + 1] end
      if words.k then redis.call('ZREM', STOPPED_LETTERS, of_key(words.k) .. words.o .. id) end
    end
    remove_letter(ref)
    -- If the message was replayed or died again, its index value is another one.
    if redis.call('HGET', INDEX, id) == 'd' .. ref then redis.call('HDEL', INDEX, id) end
    done = done + 1
  end
end
local retried, unhandled, earlier = 0, 0, false
for i = 5 + 2 * handled, #ARGV, 3 do
  local ref, delay_ms, note = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if redis.call('XACK', STREAM, group, ref) == 1 then
    left = left + 1
    redis.call('HDEL', HANDLING, ref)  -- the note of the previous attempt
    if note ~= '' and #redis.call('XRANGE', STREAM, ref, ref) > 0 then
      redis.call('HSET', HANDLING, ref, note)
      if delay_ms == '' then
        unhandled = unhandled + 1
      else
        local first = redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2]
        earlier = earlier or not first or now + delay_ms < tonumber(first)
        redis.call('ZADD', DUE, now + delay_ms, ref)
        retried = retried + 1
      end
    end
  end
end
if earlier then wake() end  -- waiting consumers must read the next due time again
for word, count in pairs({ done = done, retried = retried, dead = unhandled }) do
  if count > 0 then redis.call('HINCRBY', STATS, word, count) end
end
return done + left
