-- Accept a batch of events: to the log at once, or held until due.
-- KEYS: log_held log_due log_stats given
-- USES: clock moment groups places log order trim accepted
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

local function receipt(id, serial)
  if redis.call('HEXISTS', LOG_HELD, id) == 1 then return 2 end
  if serial > 0 then
    if accepted(state, serial) then return 2 end
  else
    if redis.call('EXISTS', GIVEN .. id) == 1 then return 2 end
    local by, number = string.match(id, '^(.*)%-([1-9]%d*)$')
    if by and #number < 15 and accepted(load_sender(by), tonumber(number)) then return 2 end
  end
  if room <= 0 then return 3 end
  return 1
end
for i = 6, #ARGV, 5 do
  local id, body, serial = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local answer = receipt(id, serial)
  receipts[#receipts + 1] = answer
  if answer == 1 then
    local due, expires = moment(ARGV[i + 3]), moment(ARGV[i + 4])
    if due > now then
      local first = redis.call('ZRANGE', LOG_DUE, 0, 0, 'WITHSCORES')[2]
      redis.call('HSET', LOG_HELD, id, expires .. '\n' .. body)
      redis.call('ZADD', LOG_DUE, due, id)
      earlier = earlier or not first or due < tonumber(first)
    else
      record(body, expires)
      ready = true
    end
    if serial > 0 then accept(state, serial) else redis.call('SET', GIVEN .. id, '', 'PX', id_ttl_ms) end
    room = room - 1
    created = created + 1
  end
end

if created > 0 then
  if lossy and bound >= 0 then redis.call('XTRIM', LOG, 'MAXLEN', bound) end
  if (ready or earlier) and wake_groups() == 0 then trim() end  -- nobody claims, so nobody else will
  if state then save_sender(sender, state, id_ttl_ms) end
  redis.call('HINCRBY', LOG_STATS, 'published', created)
end
return table.concat(receipts)
