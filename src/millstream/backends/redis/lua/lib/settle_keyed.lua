-- KEYS: stream index
-- Part of a settle: done messages with a key, without an ending to store. Uses the script's local `watched`.

-- Settles `count` messages. Their refs, then their ids, are the arguments after `at`. Returns the number of messages that this
-- call settled, and the number of messages that became ready.
local function settle_keyed(at, count)
  local own, logged, ids, keys, positions, indexed, acked = {}, {}, {}, {}, {}, {}, 0
  for i = 1, count do
    local ref = ARGV[at + i]
    local stream, entry = stream_of(ref)
    if stream.mark == '' then
      own[#own + 1], indexed[i] = entry, entry
    else
      logged[#logged + 1], indexed[i] = entry, ''
    end
    ids[i], positions[i], keys[i] = ARGV[at + count + i], order_of(ref)
  end
  if #own > 0 then
    acked = redis.call('XACK', STREAM, streams[1].group, unpack(own))
    redis.call('XDEL', STREAM, unpack(own))
  end
  if #logged > 0 then acked = acked + redis.call('XACK', streams[2].key, streams[2].group, unpack(logged)) end
  if #own > 0 or acked < count then
    -- If this call was sent again, an earlier copy settled some messages. Those that live again or ended in another way do not
    -- pass the turn on.
    local found, gone = redis.call('HMGET', INDEX, unpack(ids)), {}
    for i = count, 1, -1 do
      local same = found[i] and found[i] == indexed[i]
      if same then gone[#gone + 1] = ids[i] end
      if acked < count and not same and (indexed[i] ~= '' or found[i] and string.sub(found[i], 1, 1) ~= 'd') then
        table.remove(ids, i)
        table.remove(keys, i)
        table.remove(positions, i)
      end
    end
    if #gone > 0 then redis.call('HDEL', INDEX, unpack(gone)) end
  end
  local passed = #keys > 0 and pass_on(positions, keys) or 0
  if watched then
    for _, id in ipairs(ids) do tell(id, '') end
  end
  return acked, passed
end
