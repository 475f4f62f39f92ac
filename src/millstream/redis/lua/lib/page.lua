-- One page of a listing: at most ARGV[3] rows, and no more once their bodies fill 256 KiB. ARGV[4], unless it is empty, is part of the bodies
-- that are wanted: others are passed over, at most 1,000 in one call. Then the last one is put though it is not wanted, as the cursor.
local page, left, bytes = {}, tonumber(ARGV[3]), 262144
local wanted, looks = ARGV[4], ARGV[4] == '' and math.huge or 1000

-- True while there is room for another.
local function put(row, body, size)
  looks = looks - 1
  if looks == 0 or wanted == '' or string.find(body, wanted, 1, true) then
    page[#page + 1] = row
    left, bytes = left - 1, bytes - (size or #body)
  end
  return left > 0 and bytes > 0 and looks > 0
end

-- The body among an entry's fields, and how much all of them take.
local function body_of(fields)
  local n, body = 0, ''
  for i = 1, #fields, 2 do
    n = n + #fields[i] + #fields[i + 1]
    if fields[i] == 'd' then body = fields[i + 1] end
  end
  return body, n
end
