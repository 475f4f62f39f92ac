-- One page of a listing: at most ARGV[3] rows, and about 256 KiB of bodies. If ARGV[4] is not empty, jobs whose body does not
-- contain it are skipped. Jobs whose body is lost (false) are skipped too. One call skips at most 1,000 jobs; the last of them
-- is put on the page as the cursor.
local page, left, bytes = {}, tonumber(ARGV[3]), 262144
local wanted, passes = ARGV[4], 1000

-- Adds a row to the page. True while the page is not full.
local function put(row, body, size)
  if not body or wanted ~= '' and not string.find(body, wanted, 1, true) then
    passes = passes - 1
    if passes > 0 then return true end
  end
  page[#page + 1] = row
  left, bytes = left - 1, bytes - (size or body and #body or 0)
  return left > 0 and bytes > 0 and passes > 0
end

-- Returns the body among an entry's fields, and the size of all fields.
local function body_of(fields)
  local n, body = 0, ''
  for i = 1, #fields, 2 do
    n = n + #fields[i] + #fields[i + 1]
    if fields[i] == 'd' then body = fields[i + 1] end
  end
  return body, n
end
