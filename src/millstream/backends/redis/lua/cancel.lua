-- Cancel jobs that are scheduled, blocked or ready.
-- KEYS: stream index held due stats
-- USES: wake members order keyed keyed_entry turns held locate tell ending
-- ARGV: clock, group, ending, ttl_ms, id_ttl_ms, whether the ending names the request (0|1), then ids
-- Returns one digit for each id: 1 cancelled, 2 running, 0 ended or unknown.
local group, ending, ttl_ms, id_ttl_ms, named = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'
local ordered, watched = redis.call('EXISTS', TURNS) == 1, redis.call('EXISTS', WAITERS) == 1

-- In a batch: entries after the last delivered one are ready and not claimed, so XPENDING is not needed. (Measured: 5 to 8 µs
-- per job.)
local given_ms, given_seq
if #ARGV > 7 then
  given_ms, given_seq = 0, 0
  local groups = redis.pcall('XINFO', 'GROUPS', STREAM)
  for _, info in ipairs(groups.err and {} or groups) do
    local words = {}
    for k = 1, #info, 2 do words[info[k]] = info[k + 1] end
    if words.name == group then given_ms, given_seq = number(words['last-delivered-id']) end
  end
end

local function where_is(id)
  if given_ms then
    local at = redis.call('HGET', INDEX, id)
    if at then
      local ms, seq = number(at)
      if ms and (ms > given_ms or ms == given_ms and seq > given_seq) then return 'fresh', at end
    end
  end
  return locate(group, id)
end

local cancelled = 0
local function cancel(id)
  local where, at = where_is(id)
  if where == 'running' then return 2 end
  local key, in_order
  if where == 'h' then
    local noted = redis.call('HGET', KEYED, id)
    if noted then
      key, in_order = key_in(noted)
      redis.call('HDEL', KEYED, id)
    end
    unhold(id)
    redis.call('ZREM', DUE, id)
  elseif where == 'p' then
    local its_key, its_place = key_in(string.sub(at, 2))
    unblock(of_key(its_key) .. its_place .. id)
  elseif where == 'ready' or where == 'fresh' then
    if ordered then
      local entry = redis.call('XRANGE', STREAM, at, at)[1]
      if entry and has_key(entry[2]) then
        local words = said(entry[2])
        key, in_order = words.k, words.o or order_position(at)
      end
    end
    local deleted = redis.call('XDEL', STREAM, at)
    if where == 'ready' then
      redis.pcall('XACK', STREAM, group, at)
    elseif deleted == 0 then  -- another program trimmed the stream
      redis.call('HDEL', INDEX, id)
      return 0
    end
  else
    return named and redis.call('GET', ENDING .. id) == ending and 1 or 0
  end
  redis.call('HDEL', INDEX, id)
  if key and has_turn(redis.call('HGET', TURNS, key), in_order, id) and pass_turns({ key }) > 0 then wake() end
  leave_behind(id, ending, ttl_ms, id_ttl_ms)
  if watched then tell(id, ending) end
  cancelled = cancelled + 1
  return 1
end

local answers = {}
for i = 7, #ARGV do answers[i - 6] = cancel(ARGV[i]) end
if cancelled > 0 then redis.call('HINCRBY', STATS, 'cancelled', cancelled) end
return table.concat(answers)
