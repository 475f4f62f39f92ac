-- Check part of the index: whether each job is where the index says.
-- KEYS: index stream held due dead
-- USES: members keyed
-- FLAGS: no-writes
-- ARGV: clock, cursor, count
-- Returns {cursor, ids of missing jobs, ids of scheduled jobs without a due time}.
local gone, stuck = {}, {}
local found = redis.call('HSCAN', INDEX, ARGV[2], 'COUNT', ARGV[3])
for i = 1, #found[2], 2 do
  local id, at = found[2][i], found[2][i + 1]
  local first = string.sub(at, 1, 1)
  if first == 'h' then
    if redis.call('HEXISTS', HELD, id) == 0 then
      gone[#gone + 1] = id
    elseif not redis.call('ZSCORE', DUE, id) then
      stuck[#stuck + 1] = id
    end
  elseif first == 'p' then
    local key, position = key_in(string.sub(at, 2))
    if redis.call('HEXISTS', HELD, of_key(key) .. position .. id) == 0 then gone[#gone + 1] = id end
  elseif first == 'd' then
    if #redis.call('XRANGE', DEAD, string.sub(at, 2), string.sub(at, 2)) == 0 then gone[#gone + 1] = id end
  elseif #redis.call('XRANGE', STREAM, at, at) == 0 then
    gone[#gone + 1] = id
  end
end
return { found[1], gone, stuck }
