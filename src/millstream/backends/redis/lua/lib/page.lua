-- One page of a listing: at most ARGV[3] rows, and no more once their bodies fill 256 KiB. ARGV[4], unless it is empty, is part of the bodies
-- that are wanted: others are passed over, and so are jobs whose body is lost (false). One call passes over at most 1,000. It puts the
-- last of them on the page as the cursor.
local page, left, bytes = {}, tonumber(ARGV[3]), 262144
local wanted, passes = ARGV[4], 1000

-- True while there is room for another.
local function put(row, body, size)
  if not body or wanted ~= '' and not string.find(body, wanted, 1, true) then
    passes = passes - 1
    if passes > 0 then return true end
  end
  page[#page + 1] = row
  left, bytes = left - 1, bytes - (size or body and #body or 0)
  return left > 0 and bytes > 0 and passes > 0
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
