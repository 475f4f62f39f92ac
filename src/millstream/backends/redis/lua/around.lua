-- Look around for what other hands destroyed, a little at a time: names that hold entries without a lease, turns whose messages are
-- gone, jobs that wait without a moment or a turn, stopped keys that would go on, and jobs whose entries are gone. A claim says when
-- it is time.
-- KEYS: leases lapsed meta due held blocked turns index stream dead
-- USES: clock wake append ending dead_letter streams members keyed turns stopped_again strayed retire
-- OF A GROUP: groups log_stream stuck_in_log
-- ARGV: clock, group, consumer, lost_letter ('': what is claimed are dead letters), id_ttl_ms, dead_max_count,
-- dead_oldest_ms (age)
-- Returns {1: there is more to do at once, 0: there is not; how many were found}. Each function below returns how many it found.
local lost_letter, id_ttl_ms = ARGV[4], tonumber(ARGV[5])
if not redis.call('ZSCORE', LEASES, ARGV[3]) then return { 0, 0 } end  -- its group may be gone, on purpose
local PAGE = 100

-- Names that hold entries, but have no lease and are not known to have lapsed: `leases` or `lapsed` was lost. They have lapsed.
-- Goes on after `cursor`; returns how many, and where to go on, or ''.
local find_orphans
function find_orphans(cursor)
  local stream, after = stream_of(cursor == '' and '-' or cursor)
  local pending = redis.pcall('XPENDING', stream.key, stream.group, after, '+', PAGE)
  if pending.err then pending = {} end
  local known, found = {}, 0
  for _, p in ipairs(pending) do
    if not known[p[2]] then
      known[p[2]] = true
      if not redis.call('ZSCORE', LEASES, p[2]) then found = found + redis.call('SADD', LAPSED, p[2]) end
    end
  end
  if #pending == PAGE then return found, stream.mark .. '(' .. pending[PAGE][1] end
  if not in_group or stream.mark ~= '' then return found, '' end
  local more, at = find_orphans('L-')
  return found + more, at
end

-- What is held, but neither due nor blocked: `due` or `blocked` was lost. When it was due nobody knows, so it is due now.
local function find_stuck()
  if redis.call('HLEN', HELD) <= redis.call('ZCARD', DUE) + redis.call('ZCARD', BLOCKED) then return 0 end
  local found = 0
  for _, id in ipairs(redis.call('HRANDFIELD', HELD, PAGE)) do
    local _, cut = string.find(id, '\0\0', 1, true)
    if cut and string.find(string.sub(id, cut + 1, cut + 40), '^' .. string.rep('%d', 40)) then
      found = found + redis.call('ZADD', BLOCKED, 0, id)
    elseif not redis.call('ZSCORE', DUE, id) then
      found = found + redis.call('ZADD', DUE, now, id)
    end
  end
  return found
end

-- Keys of which some are blocked, and none has the turn: `turns` was lost. A key that is stopped stays so. Goes on after `cursor`;
-- returns how many, and where to go on, or ''.
local function find_blocked(cursor)
  local keys, found = {}, 0
  for _ = 1, 16 do
    local member = redis.call('ZRANGEBYLEX', BLOCKED, cursor == '' and '-' or '(' .. cursor, '+', 'LIMIT', 0, 1)[1]
    if not member then
      cursor = ''
      break
    end
    local _, cut = string.find(member, '\0\0', 1, true)
    local key = string.gsub(string.sub(member, 1, cut - 2), '%z\1', '\0')
    if redis.call('HEXISTS', TURNS, key) == 0 then
      found = found + 1
      if not stop_again(key) then keys[#keys + 1] = key end
    end
    cursor = string.sub(member, 1, cut) .. '\255'
  end
  if #keys > 0 and pass_turns(keys) > 0 then wake() end
  return found, cursor
end

-- Jobs that the index knows and whose entries or bodies are gone. They are dead now, so that their end is seen; one that was told of
-- before, by its entry, only ends. An event is forgotten: other groups have it, too.
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
  if dead_lettered > 0 then retire(tonumber(ARGV[6]), now - ARGV[7], dead_lettered) end
  return found
end

local of_letters = lost_letter == ''
local noted_as = of_letters and 'letters_' or ''  -- a group and its dead letters share what is noted
local PARTS = of_letters and { find_orphans } or { find_orphans, find_strayed, find_blocked, find_stopped }

-- Something was found, so that all pages follow: one part after the other, each until a round finds nothing more.
local hurry = redis.call('HGET', META, noted_as .. 'hurry')
if hurry then
  local part = tonumber(hurry)
  local some, cursor = PARTS[part](redis.call('HGET', META, noted_as .. 'at') or '')
  if some > 0 then redis.call('HSET', META, noted_as .. 'found', 1) end
  if cursor == '' and redis.call('HDEL', META, noted_as .. 'found') == 0 then part = part + 1 end
  if part > #PARTS then
    redis.call('HDEL', META, noted_as .. 'hurry', noted_as .. 'at')
    return { 0, some }
  end
  redis.call('HSET', META, noted_as .. 'hurry', part, noted_as .. 'at', cursor)
  return { 1, some }
end

-- One page of each.
local found, again = 0, 0
for part, find in ipairs(PARTS) do
  local field = noted_as .. 'at' .. part
  local before = redis.call('HGET', META, field) or ''
  local some, cursor = find(before)
  if cursor ~= before then redis.call('HSET', META, field, cursor) end
  found = found + some
end
if not of_letters then again = find_stuck() + find_lost() + (in_group and find_stuck_in_log() or 0) end
if in_group then redis.call('SADD', GROUPS, streams[2].group) end
if again > 0 then redis.call('HDEL', META, 'around') end
if found > 0 then redis.call('HSET', META, noted_as .. 'hurry', 1, noted_as .. 'at', '') end
return { found + again > 0 and 1 or 0, found + again }
