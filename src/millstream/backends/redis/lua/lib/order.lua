-- Comparing entry ids, which are too long for a single number.
local LAST_SEQ = '-18446744073709551615'

local function number(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

local function before(a, b)
  local a_ms, a_seq = number(a)
  local b_ms, b_seq = number(b)
  return a_ms < b_ms or a_ms == b_ms and a_seq < b_seq
end

local function id_before(id)
  local ms, seq = number(id)
  if seq == 0 then return string.format('%.0f', ms - 1) .. LAST_SEQ end
  return string.format('%.0f-%.0f', ms, seq - 1)
end
