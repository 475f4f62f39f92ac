-- Read a topic's log without a group: return the events after a position, and the number of events that left the log unread.
-- Also publishes events that are due, and trims the log.
-- KEYS: log_due log_bell
-- USES: clock groups group_positions log order notes delayed trim followed
-- ARGV: clock, count, then the position: entry ('': the current end), number, life
-- Returns {now, next_due_ms or -1, missed (-1: unknown), then the new position: entry, number, life, bell; then the entries}.
local count, entry, number = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
mark_followed()
local life = redis.call('HGET', LOG_META, 'followed')
publish_due()

local info = { length = 0, ['last-generated-id'] = '0-0', ['entries-added'] = 0 }
local told = redis.pcall('XINFO', 'STREAM', LOG)  -- if there is no log yet, this is an error without fields
for k = 1, #told, 2 do info[told[k]] = told[k + 1] end
local last, added = info['last-generated-id'], info['entries-added']

local missed, entries = 0, {}
if entry == '' then
  entry, number = last, added
else
  if life ~= ARGV[5] then
    entry, number, missed = '0-0', 0, -1  -- the server was flushed, and this is a new log
  elseif before(last, entry) then
    entry, number, missed = last, added, -1  -- the end of the log is gone: a restored backup, or another program
  end
  entries = redis.call('XRANGE', LOG, '(' .. entry, '+', 'COUNT', count)
  -- Number of events after the position that are neither returned now nor left in the log. If older entries are still there,
  -- nothing after the position was trimmed. A deletion by another program only shows at the end of the log. A negative number
  -- means that this is not the log that the caller read before.
  local gone = added - number - #entries
  if #entries == count then
    local first = redis.call('XRANGE', LOG, '-', '+', 'COUNT', 1)[1][1] == entries[1][1]
    gone = first and added - number - info.length or 0
    last = entries[count][1]
  end
  if missed == 0 then missed = math.max(-1, gone) end
  entry, number = last, number + gone + #entries
end

trim()  -- only after reading
local bell = redis.call('XREVRANGE', LOG_BELL, '+', '-', 'COUNT', 1)[1]
local next_due = tonumber(redis.call('ZRANGE', LOG_DUE, 0, 0, 'WITHSCORES')[2])
return {
  now, next_due and math.max(0, next_due - now) or -1, missed, entry, number, life, bell and bell[1] or '0-0', entries,
}
