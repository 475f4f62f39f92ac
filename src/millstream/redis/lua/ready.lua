-- Ready jobs, in the order in which they will be claimed: what was handed back or left behind, then fresh entries.
-- KEYS: stream
-- USES: page pending
-- ARGV: clock, group, limit, after (an entry id, or ''), after_name (who left it; '' for a fresh one)
-- Returns rows {entry, fields, name, idle_ms, deliveries}.
local group, after, after_name = ARGV[2], ARGV[4], ARGV[5]
local begun = after ~= '' and after_name == ''
if not begun and not put_pending(group, false, after, after_name) then return page end

-- Fresh are the entries that the group was never given. A cursor may lie behind that: what it passed is running by now.
local function number(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
local last = '0-0'
local groups = redis.pcall('XINFO', 'GROUPS', STREAM)
for _, info in ipairs(groups.err and {} or groups) do
  for i = 1, #info, 2 do
    if info[i] == 'last-delivered-id' then last = info[i + 1] end
  end
end
if begun then
  local ms, seq = number(after)
  local last_ms, last_seq = number(last)
  if ms > last_ms or (ms == last_ms and seq > last_seq) then last = after end
end
while true do
  local entries = redis.call('XRANGE', STREAM, '(' .. last, '+', 'COUNT', 20)
  for _, entry in ipairs(entries) do
    if not put({ entry[1], entry[2], '', 0, 0 }, size_of(entry[2])) then return page end
    last = entry[1]
  end
  if #entries < 20 then return page end
end
