-- Publish a batch of jobs. Each job is ready immediately, or held until it is due.
-- KEYS: stream index stats ending given
-- USES: clock moment wake append members keyed schedule accepted shards
-- ARGV: clock, sender, max_length (-1: no limit), id_ttl_ms, shards, then seven for each job: id, body, serial, due, expires,
--   task, key
--   serial: a number. For a caller-given id: 0, or '\nr' and the request name, or '\nt' and the id_ttl_ms of this id, or both
--   due, expires: 0 (none), '+ms' from now, or epoch ms
--   key: '' (none), or 'k' and the ordering key
-- Returns one digit for each job: 1 created, 2 exists, 3 full, 4 conflict, 5 created by an earlier copy of this request. Then
-- 'n' if nothing was ever published to the queue before. Returns only '-' if the number of shards differs.
local sender, limit, id_ttl_ms = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local receipts, created, ready, earlier = {}, 0, false, false
if not one_of(ARGV[5]) then return '-' end
local state = sender ~= '' and load_sender(sender)
if limit >= 0 then
  limit = limit - redis.call('XLEN', STREAM) - redis.call('HLEN', HELD)
else
  limit = math.huge
end

local function receipt(id, serial, task, request)
  if serial > 0 then
    if accepted(state, serial) then return 2 end
  else
    local known = redis.call('GET', GIVEN .. id)
    local freed = known and string.sub(known, 1, 1) == '\n'
    if known then
      if string.sub(request, 1, 2) == '\nr' and known == (freed and '\n' or '') .. task .. request then return 5 end
      local cut = string.find(known, '\n', 1, true)
      if not freed then return (cut and string.sub(known, 1, cut - 1) or known) == task and 2 or 4 end
    end
    if redis.call('HEXISTS', INDEX, id) == 1 then return 2 end
    if not freed and not string.find(request, '\nt', 1, true) and redis.call('EXISTS', ENDING .. id) == 1 then return 2 end
    local by, number = string.match(id, '^(.*)%-([1-9]%d*)$')
    if by and #number < 15 and accepted(load_sender(by), tonumber(number)) then return 2 end
  end
  if limit <= 0 then return 3 end
  return 1
end
for i = 6, #ARGV, 7 do
  local id, body, serial, task, key = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 5], ARGV[i + 6]
  local request = ''
  if not serial then serial, request = 0, ARGV[i + 2] end
  local answer = receipt(id, serial, task, request)
  receipts[#receipts + 1] = answer
  if answer == 1 then
    local due, expires = moment(ARGV[i + 3]), digits(moment(ARGV[i + 4]))
    if due > now then
      earlier = schedule(id, due, expires, body) or earlier
      if key ~= '' then redis.call('HSET', KEYED, id, order_note('', task, string.sub(key, 2))) end
    else
      local entry = key == '' and append(body, expires) or append_keyed(id, body, expires, string.sub(key, 2), '', task)
      redis.call('HSET', INDEX, id, entry)
      ready = true
    end
    if serial > 0 then
      accept(state, serial)
    else
      redis.call('SET', GIVEN .. id, task .. request)
      redis.call('DEL', ENDING .. id)  -- of an earlier job with this id
    end
    limit = limit - 1
    created = created + 1
  end
end

if created > 0 then
  if ready or earlier then wake() end
  if state then save_sender(sender, state, id_ttl_ms) end
  if redis.call('HINCRBY', STATS, 'published', created) == created then receipts[#receipts + 1] = 'n' end
end
return table.concat(receipts)
