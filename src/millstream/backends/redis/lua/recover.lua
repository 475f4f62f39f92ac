-- Return the messages that a consumer has claimed but does not hold, because the reply to a claim was lost.
-- KEYS: stream leases
-- USES: clock streams members keyed keyed_entry handling
-- OF A GROUP: log_group log_stream
-- ARGV: clock, group, consumer, after ('-', or '(' and an entry id, with the mark of its stream), then the refs that it holds
-- Returns {entries (at most about 256 KiB), crashes of each, `after` of the next call or ''}, or {-1} if the consumer has no
-- lease.
local consumer = ARGV[3]
if not redis.call('ZSCORE', LEASES, consumer) then return { -1 } end
local holding, entries, crashes = {}, {}, {}
for i = 5, #ARGV do holding[string.match(ARGV[i], '^[^/]*')] = true end
local stream, after = stream_of(ARGV[4])
local pending = redis.pcall('XPENDING', stream.key, stream.group, after, '+', 200, consumer)
if pending.err then pending = {} end  -- the consumer group is gone, and with it all claims
local size = 0
for i, p in ipairs(pending) do
  if not holding[stream.mark .. p[1]] then
    local entry = redis.call('XRANGE', stream.key, p[1], p[1])[1] or { p[1], {} }
    if STREAM == DEAD then add_note(entry) end
    entry[1] = stream.mark .. entry[1]
    if has_key(entry[2]) then
      local words = said(entry[2])
      entry[1], entry[2] = keyed_ref(entry[1], words), as_claimed(words)
    end
    entries[#entries + 1] = entry
    crashes[#crashes + 1] = p[4] - 1
    for _, part in ipairs(entry[2]) do size = size + #part end
    if size > 262144 and i < #pending then return { entries, crashes, stream.mark .. '(' .. p[1] } end
  end
end
if #pending == 200 then return { entries, crashes, stream.mark .. '(' .. pending[200][1] } end
return { entries, crashes, in_group and stream.mark == '' and 'L-' or '' }
