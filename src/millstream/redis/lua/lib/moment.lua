-- When a caller means, in server ms: '+ms' from now, a moment in ms, or 0 for never.
local function moment(text)
  if string.sub(text, 1, 1) == '+' then return now + tonumber(string.sub(text, 2)) end
  return tonumber(text)
end
