-- The common publish of events: they go to the log immediately, their serials follow the sender's last, max_length allows
-- them, the topic has readers, and other scripts trim it. Any other call changes nothing here and goes through `emit`.
-- KEYS: log_due log_meta log_stats sender
-- USES: groups log shards most_blocked
-- ARGV: clock, sender, id_ttl_ms, max_length (-1: no limit), mark before (the serial before the first), mark after (the last
--   serial), shards, number of events with a key (0 or all), then the bodies, and with keys: the keys
-- Returns 1 if all events were created, 0 if `emit` is needed, -1 if the number of shards differs.
local bound, mark, keyed = tonumber(ARGV[4]), SENDER .. ARGV[2], tonumber(ARGV[8])
local added = keyed > 0 and keyed or #ARGV - 8
if not one_of(ARGV[7]) then return -1 end
local grouped = redis.call('SCARD', GROUPS) > 0
if not grouped then
  local meta = redis.call('HMGET', LOG_META, 'followed', 'keep_ms', 'keep_count')
  if not meta[1] or meta[2] or meta[3] then return 0 end  -- the topic has no readers, or `emit` must trim it
end
if bound >= 0 then
  bound = bound - redis.call('ZCARD', LOG_DUE)
  if keyed > 0 then bound = bound - most_blocked() end
  if added + (grouped and redis.call('XLEN', LOG) or 0) > bound then return 0 end
end
local was = redis.call('SET', mark, ARGV[6], 'PX', ARGV[3], 'GET')
if (was or '0') ~= ARGV[5] then
  local follows = was and string.sub(was, 1, #ARGV[5] + 1) == ARGV[5] .. ':'
  if follows then was = ARGV[6] .. string.sub(was, #ARGV[5] + 1) end  -- keep the sender's gaps
  if was then redis.call('SET', mark, was, 'PX', ARGV[3]) else redis.call('DEL', mark) end
  if not follows then return 0 end
end
if keyed > 0 then
  local sender, before = ARGV[2], ARGV[5] - 8
  for i = 9, 8 + keyed do
    redis.call('XADD', LOG, stamp, 'd', ARGV[i], 'k', ARGV[i + keyed], 'i', string.format('%s-%d', sender, before + i))
  end
else
  for i = 9, #ARGV do redis.call('XADD', LOG, stamp, 'd', ARGV[i]) end
end
if grouped then
  wake_groups()
elseif bound >= 0 then
  redis.call('XTRIM', LOG, 'MAXLEN', bound)  -- drops the oldest events; followers count them
end
redis.call('HINCRBY', LOG_STATS, 'published', added)
return 1
