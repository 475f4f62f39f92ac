-- KEYS: stream
-- Where a consumer's pending entries are: in the queue's stream, and a group's also in its topic's log. A ref names an entry and,
-- by its mark, the home. ARGV[2] is the stream's group.
local homes = { { key = STREAM, group = ARGV[2], mark = '' } }

local function home_of(ref)
  if in_group and string.byte(ref) == 76 then return homes[2], string.sub(ref, 2) end
  return homes[1], ref
end
