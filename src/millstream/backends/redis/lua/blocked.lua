-- List blocked jobs by key, then position.
-- KEYS: blocked held
-- USES: page
-- FLAGS: no-writes
-- ARGV: clock, group, limit, wanted, after (a member, or '')
-- Returns rows {member, id, stored value or nil if it is lost}.
local last = ARGV[5] == '' and '-' or '(' .. ARGV[5]
while true do
  local found = redis.call('ZRANGEBYLEX', BLOCKED, last, '+', 'LIMIT', 0, 20)
  for _, member in ipairs(found) do
    local _, cut = string.find(member, '\0\0', 1, true)
    local id = string.sub(member, cut + 41)
    local stored = redis.call('HGET', HELD, member)
    if not put({ member, id, stored }, stored) then return page end
    last = '(' .. member
  end
  if #found < 20 then return page end
end
