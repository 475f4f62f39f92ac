-- Returns a caller's time in server ms. `text` is '+ms' from now, epoch ms, or 0 (none).
local function moment(text)
  if string.sub(text, 1, 1) == '+' then return now + tonumber(string.sub(text, 2)) end
  return tonumber(text)
end

-- Returns a number as text, exactly. Lua's own conversion keeps 14 digits, which is too few for times after the year 5138.
local function digits(number) return string.format('%.0f', number) end
