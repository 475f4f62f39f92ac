-- KEYS: leases
-- Puts the entries that consumers hold on the page, sorted by consumer: consumers with a lease (running) or without one
-- (waiting to be taken over). Continues after the entry `after` of the consumer `after_name`. Rows: {entry, fields, name,
-- idle_ms, deliveries}. True while the page is not full.
local function put_pending(leased, after, after_name)
  local names, seen = {}, {}
  for _, stream in ipairs(streams) do
    local summary = redis.pcall('XPENDING', stream.key, stream.group)
    for _, held in ipairs(not summary.err and summary[4] or {}) do
      local name = held[1]
      local has_lease = redis.call('ZSCORE', LEASES, name) and true or false
      if has_lease == leased and name >= after_name and not seen[name] then
        seen[name] = true
        names[#names + 1] = name
      end
    end
  end
  table.sort(names)
  local after_stream, after_entry = stream_of(after)
  for _, name in ipairs(names) do
    for i, stream in ipairs(streams) do
      local start = '-'
      if name == after_name and stream == after_stream then
        start = '(' .. after_entry
      elseif name == after_name and i == 1 then
        start = nil  -- the cursor is already in the log
      end
      while start do
        local pending = redis.pcall('XPENDING', stream.key, stream.group, start, '+', 20, name)
        if pending.err then break end
        for _, p in ipairs(pending) do
          local entry = redis.call('XRANGE', stream.key, p[1], p[1])[1]
          local fields = entry and entry[2] or {}
          if not put({ stream.mark .. p[1], fields, name, p[3], p[4] }, body_of(fields)) then return false end
        end
        start = #pending == 20 and '(' .. pending[20][1] or nil
      end
    end
  end
  return true
end
