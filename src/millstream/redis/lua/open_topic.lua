-- Make a topic's groups that do not exist yet, each where it starts to read.
-- KEYS: log_meta
-- USES: groups
-- ARGV: clock, keep_ms, keep_count ('': as long as it takes), then two each: group, start ('$': what comes from now on; or after
--   which entry)
-- Returns the names of those that were made.
local made = {}
for i, word in ipairs({ 'keep_ms', 'keep_count' }) do
  if ARGV[i + 1] == '' then redis.call('HDEL', LOG_META, word) else redis.call('HSET', LOG_META, word, ARGV[i + 1]) end
end
local known = cursors()
for i = 4, #ARGV, 2 do
  local group, start = ARGV[i], ARGV[i + 1]
  if not known[group] then
    local meta = TOPIC .. ':g:' .. group .. ':meta'
    -- One that lost its place in the log goes on from our note of it.
    redis.call('XGROUP', 'CREATE', LOG, group, redis.call('HGET', meta, 'cursor') or start, 'MKSTREAM')
    made[#made + 1] = group
  end
  redis.call('SADD', GROUPS, group)
end
return made
