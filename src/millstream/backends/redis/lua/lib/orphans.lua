-- KEYS: leases lapsed
-- Part of `around`: consumers that hold entries, have no lease and are not in `lapsed`, because `leases` or `lapsed` was lost.
-- They are added to `lapsed`. Starts after `cursor`. Returns the number found, and the next cursor or '' at the end.
local find_orphans
function find_orphans(cursor)
  local stream, after = stream_of(cursor == '' and '-' or cursor)
  local pending = redis.pcall('XPENDING', stream.key, stream.group, after, '+', PAGE)
  if pending.err then pending = {} end
  local known, found = {}, 0
  for _, p in ipairs(pending) do
    if not known[p[2]] then
      known[p[2]] = true
      if not redis.call('ZSCORE', LEASES, p[2]) then found = found + redis.call('SADD', LAPSED, p[2]) end
    end
  end
  if #pending == PAGE then return found, stream.mark .. '(' .. pending[PAGE][1] end
  if not in_group or stream.mark ~= '' then return found, '' end
  local more, at = find_orphans('L-')
  return found + more, at
end
