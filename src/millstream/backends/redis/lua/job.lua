-- Return all data of one job.
-- KEYS: stream held due dead ending
-- USES: locate members keyed handling
-- FLAGS: no-writes
-- ARGV: clock, group, id
-- Returns {location or '', ending or '', epoch ms at which the ending expires}, followed by
--   scheduled or blocked: due, stored value
--   dead: entry, fields
--   ready or running: entry, fields, consumer, idle_ms, deliveries, time_ms
local group, id = ARGV[2], ARGV[3]
local where, at = locate(group, id)
local ending = redis.call('GET', ENDING .. id) or ''
local kept = redis.call('PEXPIRETIME', ENDING .. id)
if where == 'p' then
  local key, in_order = key_in(string.sub(at, 2))
  local stored = redis.call('HGET', HELD, of_key(key) .. in_order .. id)
  if stored then return { where, ending, kept, '', stored } end
elseif where == 'h' then
  local stored = redis.call('HGET', HELD, id)
  if stored then return { where, ending, kept, redis.call('ZSCORE', DUE, id) or '', stored } end
elseif where == 'd' then
  local letter = redis.call('XRANGE', DEAD, string.sub(at, 2), string.sub(at, 2))[1]
  if letter then
    add_note(letter)
    return { where, ending, kept, letter[1], letter[2] }
  end
elseif where then
  local entry = redis.call('XRANGE', STREAM, at, at)[1]
  local pending = redis.pcall('XPENDING', STREAM, group, at, at, 1)
  pending = not pending.err and pending[1] or { at, '', 0, 0 }
  local t = redis.call('TIME')
  local time_ms = t[1] * 1000 + math.floor(t[2] / 1000)
  return { where, ending, kept, at, entry and entry[2] or {}, pending[2], pending[3], pending[4], time_ms }
end
return { '', ending, kept }  -- another program deleted it
