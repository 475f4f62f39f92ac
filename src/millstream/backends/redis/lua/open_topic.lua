-- Create the groups of a topic that do not exist, each at its start position, and store its settings.
-- KEYS: log_meta
-- USES: groups group_positions order notes readers followed
-- ARGV: clock, the life of the topic that the caller knows ('': none), number of arguments of the first request, the first
--   request, the second request. The second one applies if the topic has another life, because the server was flushed.
--   A request: keep_ms, keep_count (0: no retention, '=': unchanged), followed (0|1), then two for each group: name, start
--   ('$': the end of the log, or the entry after which the group starts)
-- Returns the life of the topic, then four for each group that was created or had lost its position: name, whether it is new
-- (0|1), the entry after which it continues, number of entries after that one or -1 (unknown).
local t = redis.call('TIME')
redis.call('HSETNX', LOG_META, 'life', t[1] .. '.' .. t[2])
local life = redis.call('HGET', LOG_META, 'life')
local first, last = 4, 3 + ARGV[3]
if ARGV[2] ~= '' and ARGV[2] ~= life then first, last = last + 1, #ARGV end
for i, word in ipairs({ 'keep_ms', 'keep_count' }) do
  local said = ARGV[first + i - 1]
  if said == '0' then
    redis.call('HDEL', LOG_META, word)
  elseif said ~= '=' then
    redis.call('HSET', LOG_META, word, said)
  end
end
if ARGV[first + 2] == '1' then mark_followed() end
local made, known = {}, group_positions()
for i = first + 3, last, 2 do
  local group, start = ARGV[i], ARGV[i + 1]
  if not known[group] then
    -- A group that lost its position in the log continues from its cursor.
    local cursor = noted(group)
    move_group('CREATE', group, cursor or start)
    made[#made + 1] = group
    made[#made + 1] = cursor and 0 or 1
    made[#made + 1] = ''
    made[#made + 1] = -1
    known[group] = true
  end
  redis.call('SADD', GROUPS, group)
end
if #made > 0 then
  local at = readers()
  for i = 1, #made, 4 do
    local group, position = made[i], at[made[i]].position
    made[i + 2], made[i + 3] = position, at[group].lag or -1
    note(group, position)
    if #redis.call('XRANGE', LOG, '(' .. position, '+', 'COUNT', 1) > 0 then wake_group(group) end
  end
end
table.insert(made, 1, life)
return made
