-- Ready jobs, in the order in which they will be claimed: what was handed back or left behind, then fresh entries.
-- USES: homes page pending order
-- OF A GROUP: log_home
-- FLAGS: no-writes
-- ARGV: clock, group, limit, wanted, after (an entry id, or ''), after_name (who left it; '' for a fresh one)
-- Returns rows {entry, fields, name, idle_ms, deliveries}.
local after, after_name = ARGV[5], ARGV[6]
local begun = after ~= '' and after_name == ''
if not begun and not put_pending(false, after, after_name) then return page end

local function last_given(home)
  local groups = redis.pcall('XINFO', 'GROUPS', home.key)
  for _, info in ipairs(groups.err and {} or groups) do
    local words = {}
    for k = 1, #info, 2 do words[info[k]] = info[k + 1] end
    if words.name == home.group then return words['last-delivered-id'] end
  end
  return '0-0'
end

-- Fresh are the entries that the group was never given. A cursor may lie behind that: what it passed is running by now.
local after_home, after_entry = home_of(after)
local at_once = wanted == '' and 20 or 100
for i, home in ipairs(homes) do
  local last = last_given(home)
  if begun and home == after_home and before(last, after_entry) then last = after_entry end
  while not begun or home == after_home or i > 1 do
    local entries = redis.call('XRANGE', home.key, '(' .. last, '+', 'COUNT', at_once)
    for _, entry in ipairs(entries) do
      if not put({ home.mark .. entry[1], entry[2], '', 0, 0 }, body_of(entry[2])) then return page end
      last = entry[1]
    end
    if #entries < at_once then break end
  end
end
return page
