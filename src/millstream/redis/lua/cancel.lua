-- End a job that is scheduled, blocked or ready.
-- KEYS: stream index held due stats
-- USES: wake members keyed turns place ending
-- ARGV: clock, group, id, ending, ttl_ms, id_ttl_ms
-- Returns 1 cancelled, 2 running, 0 ended or unknown.
local group, id = ARGV[2], ARGV[3]
local where, at = place(group, id)
if where == 'running' then return 2 end
local key, in_order
if where == 'h' then
  local noted = redis.call('HGET', KEYED, id)
  if noted then key, in_order = key_in(noted) end
  unhold(id)
  redis.call('HDEL', KEYED, id)
  redis.call('ZREM', DUE, id)
elseif where == 'p' then
  local its_key, its_place = key_in(string.sub(at, 2))
  unblock(of_key(its_key) .. its_place .. id)
elseif where == 'ready' then
  local entry = redis.call('XRANGE', STREAM, at, at)[1]
  if entry and has_key(entry[2]) then
    local words = said(entry[2])
    key, in_order = words.k, words.o or place_of(at)
  end
  redis.call('XDEL', STREAM, at)
  redis.pcall('XACK', STREAM, group, at)
else
  return 0
end
redis.call('HDEL', INDEX, id)
redis.call('HINCRBY', STATS, 'cancelled', 1)
if key and has_turn(redis.call('HGET', TURNS, key), in_order, id) and pass_turns({ key }) > 0 then wake() end
ended(id, ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]))
return 1
