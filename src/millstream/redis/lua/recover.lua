-- What a consumer has claimed and does not hold: claims whose answer was lost.
-- KEYS: stream leases
-- USES: clock
-- ARGV: clock, group, consumer, after (an exclusive start, or '-'), then the refs it holds
-- Returns {entries, at most about 256 KiB, crashes, where to go on or ''}, or {-1} if the consumer has no lease.
local group, consumer = ARGV[2], ARGV[3]
if not redis.call('ZSCORE', LEASES, consumer) then return { -1 } end
local holding, entries, crashes = {}, {}, {}
for i = 5, #ARGV do holding[ARGV[i]] = true end
local pending = redis.pcall('XPENDING', STREAM, group, ARGV[4], '+', 200, consumer)
if pending.err then return { {}, {}, '' } end  -- the group is gone, and with it whatever was claimed
local size = 0
for i, p in ipairs(pending) do
  if not holding[p[1]] then
    local entry = redis.call('XRANGE', STREAM, p[1], p[1])[1] or { p[1], {} }
    entries[#entries + 1] = entry
    crashes[#crashes + 1] = p[4] - 1
    for _, part in ipairs(entry[2]) do size = size + #part end
    if size > 262144 and i < #pending then return { entries, crashes, '(' .. p[1] } end
  end
end
return { entries, crashes, #pending == 200 and '(' .. pending[200][1] or '' }
