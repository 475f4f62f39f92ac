-- KEYS: stream
-- Where a consumer's pending entries are: in the queue's stream, and a group's also in its topic's log. A ref names an entry and,
-- by its mark, the stream; of one that has a key also that, behind a slash. ARGV[2] is the stream's group.
local streams = { { key = STREAM, group = ARGV[2], mark = '' } }

local function stream_of(ref)
  local cut = string.find(ref, '/', 1, true)
  local entry = cut and string.sub(ref, 1, cut - 1) or ref
  if in_group and string.byte(entry) == 76 then return streams[2], string.sub(entry, 2) end
  return streams[1], entry
end
