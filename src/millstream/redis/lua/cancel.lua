-- End a job that is scheduled, blocked or ready.
-- KEYS: stream index held due stats
-- USES: wake members keyed turns place ending
-- ARGV: clock, group, id, ending, ttl_ms, id_ttl_ms
-- Returns 1 cancelled, 2 running, 0 ended or unknown.
local group, id = ARGV[2], ARGV[3]
local where, at = place(group, id)
if where == 'running' then return 2 end
local key
if where == 'h' then
  local noted = redis.call('HGET', KEYED, id)
  key = noted and key_in(noted)
  unhold(id)
  redis.call('HDEL', KEYED, id)
  redis.call('ZREM', DUE, id)
elseif where == 'p' then
  local of, in_order = key_in(string.sub(at, 2))
  unhold(id)
  redis.call('ZREM', BLOCKED, of_key(of) .. in_order .. id)
elseif where == 'ready' then
  local entry = redis.call('XRANGE', STREAM, at, at)[1]
  key = entry and has_key(entry[2]) and entry[2][4]
  redis.call('XDEL', STREAM, at)
  redis.pcall('XACK', STREAM, group, at)
else
  return 0
end
redis.call('HDEL', INDEX, id)
redis.call('HINCRBY', STATS, 'cancelled', 1)
if key and holder_of(redis.call('HGET', TURNS, key)) == id and pass_turns({ key }) > 0 then wake() end
ended(id, ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]))
return 1
