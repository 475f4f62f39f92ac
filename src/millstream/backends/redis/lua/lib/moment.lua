-- When a caller means, in server ms: '+ms' from now, a moment in ms, or 0 for never.
local function moment(text)
  if string.sub(text, 1, 1) == '+' then return now + tonumber(string.sub(text, 2)) end
  return tonumber(text)
end

-- A number as text, exactly. Lua's own conversion keeps 14 digits, which is too few for a moment after the year 5138.
local function digits(number) return string.format('%.0f', number) end
