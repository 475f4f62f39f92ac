-- End deliveries of dead letters: those that were handled leave the list, the others stay in it and are given no more.
-- KEYS: stream leases index stats stopped_letters
-- USES: members
-- ARGV: clock, group, consumer, handled, then so many refs and as many ids, then the refs of the others
-- Returns how many were settled now, or -1 if the consumer has no lease.
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
    redis.call('XDEL', STREAM, ref)
    -- One that was replayed meanwhile, or died again, is elsewhere.
    if redis.call('HGET', INDEX, id) == 'd' .. ref then redis.call('HDEL', INDEX, id) end
    done = done + 1
  end
end
for i = 5 + 2 * handled, #ARGV do left = left + redis.call('XACK', STREAM, group, ARGV[i]) end
if done > 0 then redis.call('HINCRBY', STATS, 'done', done) end
return done + left
