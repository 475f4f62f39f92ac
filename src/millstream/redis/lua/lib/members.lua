-- Sets of messages in order: members are key, place and id, all of one score.

-- Where an entry is, so that places compare as text.
local function place_of(entry)
  local ms, seq = string.match(entry, '^(%d+)-(%d+)$')
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #seq) .. seq
end

-- What the members of one key begin with, and of no other, in the sets whose members are key, place and id.
local function of_key(key) return (string.gsub(key, '%z', '\0\1')) .. '\0\0' end

-- The place and id of such a member; `begins` is of_key.
local function split_member(member, begins) return string.sub(member, #begins + 1, #begins + 40), string.sub(member, #begins + 41) end
