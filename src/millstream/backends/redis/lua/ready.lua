-- List ready jobs in the order in which they will be claimed: released jobs and those of lapsed consumers, then fresh entries.
-- USES: streams page pending order
-- OF A GROUP: log_group log_stream
-- FLAGS: no-writes
-- ARGV: clock, group, limit, wanted, after (an entry id, or ''), after_name (the consumer that held it, '' for a fresh entry)
-- Returns rows {entry, fields, name, idle_ms, deliveries}.
local after, after_name = ARGV[5], ARGV[6]
local begun = after ~= '' and after_name == ''
if not begun and not put_pending(false, after, after_name) then return page end

local function last_given(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream.key)
  for _, info in ipairs(groups.err and {} or groups) do
    local words = {}
    for k = 1, #info, 2 do words[info[k]] = info[k + 1] end
    if words.name == stream.group then return words['last-delivered-id'] end
  end
  return '0-0'
end

-- Fresh entries come after the last delivered one. The cursor may be older than that: the entries between them are running by
-- now.
local after_stream, after_entry = stream_of(after)
local at_once = wanted == '' and 20 or 100
for i, stream in ipairs(streams) do
  local last = last_given(stream)
  if begun and stream == after_stream and before(last, after_entry) then last = after_entry end
  while not begun or stream == after_stream or i > 1 do
    local entries = redis.call('XRANGE', stream.key, '(' .. last, '+', 'COUNT', at_once)
    for _, entry in ipairs(entries) do
      if not put({ stream.mark .. entry[1], entry[2], '', 0, 0 }, body_of(entry[2])) then return page end
      last = entry[1]
    end
    if #entries < at_once then break end
  end
end
return page
