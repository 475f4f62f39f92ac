-- Sets of messages in order: members are key, position and id, all of one score.

-- Where an entry is, so that positions compare as text.
local ZEROS = string.rep('0', 20)
local function order_position(entry)
  local cut = string.find(entry, '-', 1, true)
  return string.sub(ZEROS, cut) .. string.sub(entry, 1, cut - 1) .. string.sub(ZEROS, #entry - cut + 1) .. string.sub(entry, cut + 1)
end

-- What the members of one key begin with, and of no other, in the sets whose members are key, position and id.
local function of_key(key)
  if string.find(key, '\0', 1, true) then key = string.gsub(key, '%z', '\0\1') end
  return key .. '\0\0'
end

-- The position and id of such a member; `begins` is of_key.
local function split_member(member, begins) return string.sub(member, #begins + 1, #begins + 40), string.sub(member, #begins + 41) end
