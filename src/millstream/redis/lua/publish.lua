-- Accept a batch of jobs: ready at once, or held until due.
-- KEYS: stream index stats ending given
-- USES: clock wake append schedule accepted
-- ARGV: clock, sender, max_length (-1: none), id_ttl_ms, first
--   first > 0: generated ids sender-first, sender-(first+1) …, all ready at once; then one body each
--   first = 0: then six each: id, body, serial (0: caller-given), due, expires, task
--              (due, expires: 0, '+ms' from now, or a moment in ms)
-- Returns one digit each: 1 created, 2 exists, 3 full, 4 conflict.
local sender, room, id_ttl_ms, first = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local receipts, index, created, ready, earlier = {}, {}, 0, false, false
local state = sender ~= '' and load_sender(sender)
if room >= 0 then
  room = room - redis.call('XLEN', STREAM) - redis.call('ZCARD', DUE)
else
  room = math.huge
end

if first > 0 then
  for i = 6, #ARGV do
    local serial = first + i - 6
    if accepted(state, serial) then
      receipts[i - 5] = 2
    elseif room <= 0 then
      receipts[i - 5] = 3
    else
      index[#index + 1] = sender .. '-' .. string.format('%d', serial)
      index[#index + 1] = redis.call('XADD', STREAM, '*', 'd', ARGV[i])
      accept(state, serial)
      room = room - 1
      created = created + 1
      receipts[i - 5] = 1
    end
  end
  ready = created > 0
  if ready then redis.call('HSET', INDEX, unpack(index)) end
else
  local function moment(text)
    if string.sub(text, 1, 1) == '+' then return now + tonumber(string.sub(text, 2)) end
    return tonumber(text)
  end
  local function receipt(id, serial, task)
    if serial > 0 then
      if accepted(state, serial) then return 2 end
    else
      local known = redis.call('GET', GIVEN .. id)
      if known then return known == task and 2 or 4 end
      if redis.call('HEXISTS', INDEX, id) == 1 or redis.call('EXISTS', ENDING .. id) == 1 then return 2 end
      local by, number = string.match(id, '^(.*)%-([1-9]%d*)$')
      if by and #number < 15 and accepted(load_sender(by), tonumber(number)) then return 2 end
    end
    if room <= 0 then return 3 end
    return 1
  end
  for i = 6, #ARGV, 6 do
    local id, body, serial, task = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 5]
    local answer = receipt(id, serial, task)
    receipts[#receipts + 1] = answer
    if answer == 1 then
      local due, expires = moment(ARGV[i + 3]), moment(ARGV[i + 4])
      if due > now then
        earlier = schedule(id, due, expires, body) or earlier
      else
        redis.call('HSET', INDEX, id, append(body, expires))
        ready = true
      end
      if serial > 0 then accept(state, serial) else redis.call('SET', GIVEN .. id, task) end
      room = room - 1
      created = created + 1
    end
  end
end

if created > 0 then
  if ready or earlier then wake() end
  if state then save_sender(sender, state, id_ttl_ms) end
  redis.call('HINCRBY', STATS, 'published', created)
end
return table.concat(receipts)
