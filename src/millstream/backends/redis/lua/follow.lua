-- Read on in a topic's log without a group: what comes after a position, and how much of that is gone.
-- On the way: publish what is due, trim.
-- KEYS: log_due log_bell
-- USES: clock groups group_positions log order notes delayed trim followed
-- ARGV: clock, count, the position: entry ('': the end, as it is now), its number, life
-- Returns {now, next_due_ms or -1, missed (-1: nobody knows), the new position: entry, number, life, bell; entries}.
local count, entry, number = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
mark_followed()
local life = redis.call('HGET', LOG_META, 'followed')
publish_due()

local info = { length = 0, ['last-generated-id'] = '0-0', ['entries-added'] = 0 }
local told = redis.pcall('XINFO', 'STREAM', LOG)  -- an error if there is no log yet, which has no words
for k = 1, #told, 2 do info[told[k]] = told[k + 1] end
local last, added = info['last-generated-id'], info['entries-added']

local missed, entries = 0, {}
if entry == '' then
  entry, number = last, added
else
  if life ~= ARGV[5] then
    entry, number, missed = '0-0', 0, -1  -- all was flushed, and this is another log
  elseif before(last, entry) then
    entry, number, missed = last, added, -1  -- it lost its end, or all: the server was restored, or something deleted it
  end
  entries = redis.call('XRANGE', LOG, '(' .. entry, '+', 'COUNT', count)
  -- How many of those after us are neither read now nor left for later. If some before us are left, those between were not
  -- trimmed; if something else deleted one, that shows when we get to the end. Less than none: the log is not the one we knew.
  local gone = added - number - #entries
  if #entries == count then
    local first = redis.call('XRANGE', LOG, '-', '+', 'COUNT', 1)[1][1] == entries[1][1]
    gone = first and added - number - info.length or 0
    last = entries[count][1]
  end
  if missed == 0 then missed = math.max(-1, gone) end
  entry, number = last, number + gone + #entries
end

trim()  -- not before we have read
local bell = redis.call('XREVRANGE', LOG_BELL, '+', '-', 'COUNT', 1)[1]
local next_due = tonumber(redis.call('ZRANGE', LOG_DUE, 0, 0, 'WITHSCORES')[2])
return {
  now, next_due and math.max(0, next_due - now) or -1, missed, entry, number, life, bell and bell[1] or '0-0', entries,
}
