-- KEYS: sender
-- The accepted serials of a sender: all up to a high-water mark, except the gaps that refused or lost calls left.
-- Stored as 'mark' or 'mark:a-b,c-d'.
local function load_sender(name)
  local stored = redis.call('GET', SENDER .. name)
  local state = { mark = 0, gaps = {} }
  if stored then
    state.mark = tonumber(string.match(stored, '^%d+'))
    for a, b in string.gmatch(stored, '(%d+)%-(%d+)') do
      state.gaps[#state.gaps + 1] = { tonumber(a), tonumber(b) }
    end
  end
  return state
end

local function accepted(state, serial)
  if serial > state.mark then return false end
  for _, gap in ipairs(state.gaps) do
    if serial >= gap[1] and serial <= gap[2] then return false end
  end
  return true
end

local function accept(state, serial)
  if serial > state.mark then
    if serial > state.mark + 1 then state.gaps[#state.gaps + 1] = { state.mark + 1, serial - 1 } end
    state.mark = serial
    return
  end
  local gaps = {}
  for _, gap in ipairs(state.gaps) do
    if serial >= gap[1] and serial <= gap[2] then
      if gap[1] < serial then gaps[#gaps + 1] = { gap[1], serial - 1 } end
      if serial < gap[2] then gaps[#gaps + 1] = { serial + 1, gap[2] } end
    else
      gaps[#gaps + 1] = gap
    end
  end
  state.gaps = gaps
end

local function save_sender(name, state, ttl_ms)
  -- If there are too many gaps, merge the two oldest. The serials between them are forgotten: a late repeat of one may run
  -- twice, but none is lost.
  while #state.gaps > 64 do
    state.gaps[2][1] = state.gaps[1][1]
    table.remove(state.gaps, 1)
  end
  local gaps = {}
  for i, gap in ipairs(state.gaps) do gaps[i] = string.format('%d-%d', gap[1], gap[2]) end
  local text = string.format('%d', state.mark)
  if #gaps > 0 then text = text .. ':' .. table.concat(gaps, ',') end
  redis.call('SET', SENDER .. name, text, 'PX', ttl_ms)
end
