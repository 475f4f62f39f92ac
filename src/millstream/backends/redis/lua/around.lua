-- Find and repair data that another program deleted, one page at a time: consumers that hold entries without a lease, turns
-- whose messages are gone, held jobs without a due time or a turn, stopped keys that `turns` does not mark as stopped, and
-- jobs whose entries are gone. A claim reports when this script must run.
-- KEYS: leases meta
-- USES: streams
-- OF A GROUP: groups log_group log_stream
-- ARGV: clock, group, consumer, lost_letter ('' for an address of dead letters), id_ttl_ms, dead_max_count,
--   dead_oldest_ms (age)
-- Returns {1 if the next call should follow immediately, else 0; number of repairs}.
local consumer, lost_letter, id_ttl_ms = ARGV[3], ARGV[4], tonumber(ARGV[5])
local dead_max_count, dead_oldest_ms = tonumber(ARGV[6]), ARGV[7]
if not redis.call('ZSCORE', LEASES, consumer) then return { 0, 0 } end  -- the group may have been removed on purpose
local PAGE = 100  -- items that each part checks per call
-- THEN USES: clock wake tell ending dead_letter members keyed turns handling retire
-- THEN USES: orphans stopped_again strayed keys_without_turn stuck lost waiting_letters
-- THEN OF A GROUP: stuck_in_log

local of_letters = lost_letter == ''
local noted_as = of_letters and 'letters_' or ''  -- a group and its dead letters share `meta`
local PARTS = of_letters and { find_orphans, find_waiting } or { find_orphans, find_strayed, find_keys_without_turn, find_stopped }

-- An earlier call found something, so all pages are checked: one part after the other, each until a whole round finds nothing.
local hurry = redis.call('HGET', META, noted_as .. 'hurry')
if hurry then
  local part = tonumber(hurry)
  local some, cursor = PARTS[part](redis.call('HGET', META, noted_as .. 'at') or '')
  if some > 0 then redis.call('HSET', META, noted_as .. 'found', 1) end
  if cursor == '' and redis.call('HDEL', META, noted_as .. 'found') == 0 then part = part + 1 end
  if part > #PARTS then
    redis.call('HDEL', META, noted_as .. 'hurry', noted_as .. 'at')
    return { 0, some }
  end
  redis.call('HSET', META, noted_as .. 'hurry', part, noted_as .. 'at', cursor)
  return { 1, some }
end

-- Otherwise each part checks one page.
local found, again = 0, 0
for part, find in ipairs(PARTS) do
  local field = noted_as .. 'at' .. part
  local before = redis.call('HGET', META, field) or ''
  local some, cursor = find(before)
  if cursor ~= before then redis.call('HSET', META, field, cursor) end
  found = found + some
end
if not of_letters then again = find_stuck() + find_lost() + (in_group and find_stuck_in_log() or 0) end
if in_group then redis.call('SADD', GROUPS, streams[2].group) end
if again > 0 then redis.call('HDEL', META, 'around') end
if found > 0 then redis.call('HSET', META, noted_as .. 'hurry', 1, noted_as .. 'at', '') end
return { found + again > 0 and 1 or 0, found + again }
