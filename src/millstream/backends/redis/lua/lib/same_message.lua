-- Part of a settle of messages that were claimed from another server, before a failover. The servers may have given the same
-- entry id to different messages, if the failover lost one of them.

-- Whether an entry is the message with this id. The body of a message contains its id as a msgpack string. A missing entry
-- counts as the same: no other message can be harmed. The id of an entry that is not a message is made from its entry id.
local function same_message(stream, entry, id)
  local found = redis.call('XRANGE', stream.key, entry, entry)[1]
  if not found or string.find(id, entry, 1, true) then return true end
  local n = #id
  local mark = n < 32 and string.char(160 + n) or n < 256 and string.char(217, n) or string.char(218, math.floor(n / 256), n % 256)
  for i = 1, #found[2], 2 do
    if found[2][i] == 'd' then return string.find(found[2][i + 1], mark .. id, 1, true) ~= nil end
  end
  return false
end
