-- KEYS: stream leases
-- Puts on the page what consumers hold, name by name in order: those with a lease (what runs) or those without (what waits to
-- be taken over). Goes on after an entry of a name. Rows: {entry, fields, name, idle_ms, deliveries}. True while there is room.
local function put_pending(group, leased, after, after_name)
  local summary = redis.pcall('XPENDING', STREAM, group)
  if summary.err then return true end
  local names = {}
  for _, held in ipairs(summary[4] or {}) do
    local has_lease = redis.call('ZSCORE', LEASES, held[1]) and true or false
    if has_lease == leased and held[1] >= after_name then names[#names + 1] = held[1] end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local start = name == after_name and '(' .. after or '-'
    local pending
    repeat
      pending = redis.call('XPENDING', STREAM, group, start, '+', 20, name)
      for _, p in ipairs(pending) do
        local entry = redis.call('XRANGE', STREAM, p[1], p[1])[1]
        local fields = entry and entry[2] or {}
        if not put({ p[1], fields, name, p[3], p[4] }, size_of(fields)) then return false end
        start = '(' .. p[1]
      end
    until #pending < 20
  end
  return true
end
