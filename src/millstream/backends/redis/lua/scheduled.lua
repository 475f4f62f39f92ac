-- List scheduled jobs by due time.
-- KEYS: due held
-- USES: page
-- FLAGS: no-writes
-- ARGV: clock, group, limit, wanted, after (a due time, or ''), after_id (of a job due then)
-- Returns rows {id, due, stored value or nil if it is lost}.
local at = 0
if ARGV[5] ~= '' then
  if redis.call('ZSCORE', DUE, ARGV[6]) == ARGV[5] then
    at = redis.call('ZRANK', DUE, ARGV[6]) + 1
  else
    at = redis.call('ZCOUNT', DUE, '-inf', '(' .. ARGV[5])  -- that job is gone: jobs with the same due time are listed again
  end
end
while true do
  local found = redis.call('ZRANGE', DUE, at, at + 19, 'WITHSCORES')
  for i = 1, #found, 2 do
    local stored = redis.call('HGET', HELD, found[i])
    if not put({ found[i], found[i + 1], stored }, stored) then return page end
  end
  if #found < 40 then return page end
  at = at + 20
end
