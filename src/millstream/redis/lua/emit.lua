-- Accept a batch of events: to the log at once, or held until due.
-- KEYS: log_held log_due log_stats given
-- USES: clock groups accepted
-- ARGV: clock, sender, max_length (-1: none), at the bound (0 refuse, 1 drop the oldest), id_ttl_ms, then five each: id, body,
--       serial (0: caller-given), due, expires (due, expires: 0, '+ms' from now, or a moment in ms)
-- Returns one digit each: 1 created, 2 exists, 3 full.
local sender, room, id_ttl_ms = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local bound, lossy = room, ARGV[4] == '1'
local receipts, created, ready, earlier = {}, 0, false, false
local state = sender ~= '' and load_sender(sender)
if bound >= 0 and not lossy then
  room = room - redis.call('XLEN', LOG) - redis.call('ZCARD', LOG_DUE)
else
  room = math.huge
end

local function moment(text)
  if string.sub(text, 1, 1) == '+' then return now + tonumber(string.sub(text, 2)) end
  return tonumber(text)
end
for i = 6, #ARGV, 5 do
  local id, body, serial = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local answer = 1
  if serial > 0 and accepted(state, serial) or serial == 0 and redis.call('EXISTS', GIVEN .. id) == 1 then
    answer = 2
  elseif room <= 0 then
    answer = 3
  end
  receipts[#receipts + 1] = answer
  if answer == 1 then
    local due, expires = moment(ARGV[i + 3]), moment(ARGV[i + 4])
    if due > now then
      local first = redis.call('ZRANGE', LOG_DUE, 0, 0, 'WITHSCORES')[2]
      redis.call('HSET', LOG_HELD, id, expires .. '\n' .. body)
      redis.call('ZADD', LOG_DUE, due, id)
      earlier = earlier or not first or due < tonumber(first)
    elseif expires > 0 then
      redis.call('XADD', LOG, '*', 'd', body, 'x', expires)
      ready = true
    else
      redis.call('XADD', LOG, '*', 'd', body)
      ready = true
    end
    if serial > 0 then accept(state, serial) else redis.call('SET', GIVEN .. id, '', 'PX', id_ttl_ms) end
    room = room - 1
    created = created + 1
  end
end

if created > 0 then
  if lossy and bound >= 0 then redis.call('XTRIM', LOG, 'MAXLEN', '~', bound) end
  if ready or earlier then wake_groups() end
  if state then save_sender(sender, state, id_ttl_ms) end
  redis.call('HINCRBY', LOG_STATS, 'published', created)
end
return table.concat(receipts)
