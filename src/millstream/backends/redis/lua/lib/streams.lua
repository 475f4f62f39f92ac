-- KEYS: stream
-- The streams with a consumer's pending entries: the queue's own stream and, for a group, its topic's log. A ref consists of
-- the mark of the stream and the entry id; for a message with a key, a slash, position and key follow (see `keyed`). ARGV[2]
-- is the consumer group of the own stream.
local streams = { { key = STREAM, group = ARGV[2], mark = '' } }

local function stream_of(ref)
  local cut = string.find(ref, '/', 1, true)
  local entry = cut and string.sub(ref, 1, cut - 1) or ref
  if in_group and string.byte(entry) == 76 then return streams[2], string.sub(entry, 2) end
  return streams[1], entry
end
