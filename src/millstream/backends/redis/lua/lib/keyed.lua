-- KEYS: stream keyed
-- Messages that have a key. In a stream their fields are d, k (key), i (id), then t (task, of a job), x (expiry) and o (its position
-- in the order, if that is not where its entry is). A ref of one: entry/position/key, the position empty if it is the entry's.

-- The position and key that a ref names, or nothing.
local function order_of(ref)
  local cut = string.find(ref, '/', 1, true)
  if not cut then return nil end
  local again = string.find(ref, '/', cut + 1, true)
  local position = string.sub(ref, cut + 1, again - 1)
  if position == '' then position = order_position(string.match(ref, '%d+-%d+')) end
  return position, string.sub(ref, again + 1)
end

-- Appends one to the queue's own stream.
local function append_keyed(id, body, expires, key, position, task)
  if task == '' and expires == '0' and position ~= '' then  -- the most common
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

-- What is noted of one that is held: its position ('-': none yet), task and key.
local function order_note(position, task, key) return (position == '' and '-' or position) .. task .. '\n' .. key end

local function key_in(noted)
  local from = string.byte(noted) == 45 and 2 or 41
  local cut = string.find(noted, '\n', from, true)
  return string.sub(noted, cut + 1), from == 2 and '' or string.sub(noted, 1, 40), string.sub(noted, from, cut - 1)
end
