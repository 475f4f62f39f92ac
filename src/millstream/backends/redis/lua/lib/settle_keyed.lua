-- KEYS: stream index
-- Part of a settle: messages with a key that are done, without an ending to keep. Uses its local `watched`.

-- Settles `count` of them; their refs, then their ids, are the arguments after `at`. Returns how many were settled now, and how many
-- messages are ready now.
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
    -- If some were settled before, since this call was sent again, those that are alive or ended in another way pass nothing on.
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
