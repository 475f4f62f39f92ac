-- Publish a batch of events. Each event goes to the log immediately, or is held until it is due.
-- KEYS: log_held log_due log_keyed log_bell log_meta log_stats groups given
-- USES: clock moment groups group_positions log order notes trim accepted shards most_blocked
-- ARGV: clock, sender, max_length (-1: no limit), id_ttl_ms, shards, then six for each event: id, body, serial, due, expires,
--   key
--   serial: a number. For a caller-given id: 0, or '\nr' and the request name
--   due, expires: 0 (none), '+ms' from now, or epoch ms
--   key: '' (none), or 'k' and the ordering key
-- Returns one digit for each event: 1 created, 2 exists, 3 full, 5 created by an earlier copy of this request. Then 'n' if the
-- topic was never opened, or the server was flushed since. Returns only '-' if the number of shards differs.
local sender, bound, id_ttl_ms = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if not one_of(ARGV[5]) then return '-' end
-- A topic with followers but without groups drops its oldest events at max_length. There, only delayed events can fill it.
local followed = redis.call('HEXISTS', LOG_META, 'followed') == 1
local grouped = redis.call('SCARD', GROUPS) > 0
local drops = followed and not grouped
local limit = math.huge
local receipts, created, ready, earlier = {}, 0, false, false
local state = sender ~= '' and load_sender(sender)
if bound >= 0 then
  limit = bound - redis.call('ZCARD', LOG_DUE) - (drops and 0 or redis.call('XLEN', LOG))
  for i = 11, #ARGV, 6 do
    if ARGV[i] ~= '' then  -- only events with keys can be blocked
      limit = limit - most_blocked()
      break
    end
  end
end

local function receipt(id, serial, request)
  if serial == 0 then
    local known = redis.call('GET', GIVEN .. id)
    if known then return request ~= '' and known == request and 5 or 2 end
  end
  if redis.call('HEXISTS', LOG_HELD, id) == 1 then return 2 end
  if serial > 0 then
    if accepted(state, serial) then return 2 end
  else
    local by, number = string.match(id, '^(.*)%-([1-9]%d*)$')
    if by and #number < 15 and accepted(load_sender(by), tonumber(number)) then return 2 end
  end
  if limit <= 0 then return 3 end
  return 1
end
for i = 6, #ARGV, 6 do
  local id, body, serial = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local key = ARGV[i + 5] ~= '' and string.sub(ARGV[i + 5], 2) or nil
  local request = ''
  if not serial then serial, request = 0, ARGV[i + 2] end
  local answer = receipt(id, serial, request)
  receipts[#receipts + 1] = answer
  if answer == 1 then
    local due, expires = moment(ARGV[i + 3]), digits(moment(ARGV[i + 4]))
    if due > now then
      local first = redis.call('ZRANGE', LOG_DUE, 0, 0, 'WITHSCORES')[2]
      redis.call('HSET', LOG_HELD, id, expires .. '\n' .. body)
      if key then redis.call('HSET', LOG_KEYED, id, key) end
      redis.call('ZADD', LOG_DUE, due, id)
      earlier = earlier or not first or due < tonumber(first)
      limit = limit - 1
    else
      record(id, body, expires, key)
      ready = true
      if not drops then limit = limit - 1 end
    end
    if serial > 0 then accept(state, serial) else redis.call('SET', GIVEN .. id, request, 'PX', id_ttl_ms) end
    created = created + 1
  end
end

if created > 0 then
  if drops and bound >= 0 then redis.call('XTRIM', LOG, 'MAXLEN', bound - redis.call('ZCARD', LOG_DUE)) end
  if followed and earlier then redis.call('XADD', LOG_BELL, 'MAXLEN', 1, '*', 'd', '') end
  if not grouped then
    trim()  -- claims usually trim the log, and without groups there are none
  elseif ready or earlier then
    wake_groups()
  end
  if state then save_sender(sender, state, id_ttl_ms) end
  local all = redis.call('HINCRBY', LOG_STATS, 'published', created)
  if all == created and redis.call('HEXISTS', LOG_META, 'life') == 0 then receipts[#receipts + 1] = 'n' end
end
return table.concat(receipts)
