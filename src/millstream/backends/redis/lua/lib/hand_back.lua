-- KEYS: lapsed
-- Releases entries without counting a crash: the claim counted one delivery, and this subtracts it. `pending` are rows of
-- XPENDING.
local function hand_back(stream, released, pending)
  local by_count = {}
  for _, p in ipairs(pending) do
    local entries = by_count[p[4]] or { stream.key, stream.group, released, 0 }
    entries[#entries + 1], by_count[p[4]] = p[1], entries
  end
  for deliveries, entries in pairs(by_count) do
    local n = #entries
    entries[n + 1], entries[n + 2], entries[n + 3] = 'RETRYCOUNT', math.max(0, deliveries - 1), 'JUSTID'
    redis.call('XCLAIM', unpack(entries))
  end
  if #pending > 0 then redis.call('SADD', LAPSED, released) end
end
