-- Part of a settle of messages that were claimed from another server, before a failover. The servers may have given the same
-- entry id to different messages, if the failover lost one of them.

-- Whether an entry is the message with this id. The body of a message contains its id. A missing entry counts as the same: no
-- other message can be harmed.
local function same_message(stream, entry, id)
  local found = redis.call('XRANGE', stream.key, entry, entry)[1]
  if not found then return true end
  for i = 1, #found[2], 2 do
    if found[2][i] == 'd' then return string.find(found[2][i + 1], id, 1, true) ~= nil end
  end
  return false
end
