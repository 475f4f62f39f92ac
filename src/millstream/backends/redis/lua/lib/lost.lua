-- KEYS: index stream held dead
-- Part of `around`: jobs in the index whose entries or bodies are gone. They become dead letters, so that their loss is
-- visible. A job whose entry already has a dead letter only ends. An event is only removed from the index, because other
-- groups have it too. Returns the number found. Uses the script's locals `lost_letter`, `id_ttl_ms`, `dead_max_count` and
-- `dead_oldest_ms`.
local function find_lost()
  if redis.call('HLEN', INDEX) <= redis.call('XLEN', STREAM) + redis.call('HLEN', HELD) + redis.call('XLEN', DEAD) then return 0 end
  local some, found, dead_lettered = redis.call('HRANDFIELD', INDEX, PAGE, 'WITHVALUES'), 0, 0
  for i = 1, #some, 2 do
    local id, at = some[i], some[i + 1]
    local first, there = string.sub(at, 1, 1), true
    if first == 'h' then
      there = redis.call('HEXISTS', HELD, id) == 1
    elseif first == 'p' then
      local key, position = key_in(string.sub(at, 2))
      there = redis.call('HEXISTS', HELD, of_key(key) .. position .. id) == 1
    elseif first == 'd' then
      there = #redis.call('XRANGE', DEAD, string.sub(at, 2), string.sub(at, 2)) > 0
    else
      there = #redis.call('XRANGE', STREAM, at, at) > 0
    end
    if not there then
      found = found + 1
      redis.call('HDEL', INDEX, id)
      if first ~= 'd' and not in_group then
        local told = redis.call('HMGET', INDEX, 'lost-' .. at, 'malformed-' .. at)
        if not told[1] and not told[2] then
          dead_letter(id, '', '', lost_letter, at)
          dead_lettered = dead_lettered + 1
        end
        ended(id, '', 0, id_ttl_ms, true)
      end
    end
  end
  if dead_lettered > 0 then retire(dead_max_count, now - dead_oldest_ms, dead_lettered) end
  return found
end
