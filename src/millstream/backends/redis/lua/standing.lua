-- Return the time and, for a job with an ordering key, which message has the turn of the key and whether the key is stopped.
-- KEYS: stream dead index keyed turns stopped
-- USES: clock members keyed keyed_entry
-- FLAGS: no-writes
-- ARGV: clock, id
-- Returns {now}, or for a job with a key {now, key, id of the message that has the turn or '', 'since_ms id' if stopped or ''}.
local id, key = ARGV[2], nil
local at = redis.call('HGET', INDEX, id)
if not at then return { now } end
local first = string.sub(at, 1, 1)
if first == 'p' then
  key = key_in(string.sub(at, 2))
elseif first == 'h' then
  local noted = redis.call('HGET', KEYED, id)
  if noted then key = key_in(noted) end
else
  local from, entry = STREAM, at
  if first == 'd' then from, entry = DEAD, string.sub(at, 2) end
  local found = redis.call('XRANGE', from, entry, entry)[1]
  if found then key = said(found[2]).k end
end
if not key then return { now } end
local turn = redis.call('HGET', TURNS, key)
turn = turn and string.byte(turn) ~= 115 and string.sub(turn, 42) or ''  -- 's': stopped
return { now, key, turn, redis.call('HGET', STOPPED, key) or '' }
