-- KEYS: stream keyed
-- Messages with an ordering key. Their fields in a stream: d (body), k (key), i (id), then t (task, only jobs), x (expiry) and
-- o (position, if it differs from the entry's). Their ref: entry/position/key, with an empty position if it is the entry's.

-- Returns the position and key in a ref, or nil.
local function order_of(ref)
  local cut = string.find(ref, '/', 1, true)
  if not cut then return nil end
  local again = string.find(ref, '/', cut + 1, true)
  local position = string.sub(ref, cut + 1, again - 1)
  if position == '' then position = order_position(string.match(ref, '%d+-%d+')) end
  return position, string.sub(ref, again + 1)
end

-- Appends a message with a key to the queue's own stream. Returns its entry id.
local function append_keyed(id, body, expires, key, position, task)
  if task == '' and expires == '0' and position ~= '' then  -- the most common case
    return redis.call('XADD', STREAM, '*', 'd', body, 'k', key, 'i', id, 'o', position)
  end
  local entry = { 'd', body, 'k', key, 'i', id }
  if task ~= '' then
    entry[#entry + 1] = 't'
    entry[#entry + 1] = task
  end
  if tonumber(expires) ~= 0 then
    entry[#entry + 1] = 'x'
    entry[#entry + 1] = expires
  end
  if position ~= '' then
    entry[#entry + 1] = 'o'
    entry[#entry + 1] = position
  end
  return redis.call('XADD', STREAM, '*', unpack(entry))
end

-- The order note of a held message: position ('-': none yet), task and key.
local function order_note(position, task, key) return (position == '' and '-' or position) .. task .. '\n' .. key end

local function key_in(noted)
  local from = string.byte(noted) == 45 and 2 or 41
  local cut = string.find(noted, '\n', from, true)
  return string.sub(noted, cut + 1), from == 2 and '' or string.sub(noted, 1, 40), string.sub(noted, from, cut - 1)
end
