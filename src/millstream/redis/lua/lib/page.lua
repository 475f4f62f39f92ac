-- One page of a listing: at most ARGV[3] rows, and no more once their bodies fill 256 KiB.
local page, left, bytes = {}, tonumber(ARGV[3]), 262144

-- True while there is room for another.
local function put(row, size)
  page[#page + 1] = row
  left, bytes = left - 1, bytes - size
  return left > 0 and bytes > 0
end

local function size_of(fields)
  local n = 0
  for _, field in ipairs(fields) do n = n + #field end
  return n
end
