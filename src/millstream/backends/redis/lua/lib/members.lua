-- Ordered sets of messages. Members consist of key, position and id, and all have the same score.

-- Returns the position of an entry, in a form that sorts as text.
local ZEROS = string.rep('0', 20)
local function order_position(entry)
  local cut = string.find(entry, '-', 1, true)
  return string.sub(ZEROS, cut) .. string.sub(entry, 1, cut - 1) .. string.sub(ZEROS, #entry - cut + 1) .. string.sub(entry, cut + 1)
end

-- Returns the prefix that all members of one key have, and no member of another key.
local function of_key(key)
  if string.find(key, '\0', 1, true) then key = string.gsub(key, '%z', '\0\1') end
  return key .. '\0\0'
end

-- Returns the position and id in a member. `begins` is of_key of its key.
local function split_member(member, begins) return string.sub(member, #begins + 1, #begins + 40), string.sub(member, #begins + 41) end
