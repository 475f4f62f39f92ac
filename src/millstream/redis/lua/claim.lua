-- Take messages: what was released or left behind by lapsed consumers first, then what is ready.
-- On the way: promote what is due, look at overdue leases.
-- KEYS: stream leases meta due held lapsed overdue stats
-- USES: clock wake append bury homes
-- OF A GROUP: log_home groups places log order notes delayed trim
-- ARGV: clock, group, consumer, count, alone (0|1), suspect_after, run_id, released, suspects (names), lost_letter
-- ('': what is claimed are dead letters, and those that are gone were replayed, purged or too old)
-- Returns {now, next_due_ms or -1, flags (1 paused, 2 suspects wait), entries, crashes of each, plain,
-- ms until leases should be looked at again or -1, plain entries of the log}, or {-1} if the consumer has no lease. Plain: refs
-- and bodies by turns, of ready entries that have a body and nothing else. (Measured: a third less server time than entries.)
local group, consumer, left, alone = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local suspect_after, run_id, released, suspects = tonumber(ARGV[6]), ARGV[7], ARGV[8], ARGV[9]
if not redis.call('ZSCORE', LEASES, consumer) then return { -1 } end
local meta = redis.call('HMGET', META, 'paused', 'run', 'calm', 'longest', 'seen', 'looked')

-- A server that was just restarted has been away for nobody knows how long: no lease lapses until all had time to be renewed.
-- Keepers renew every third of a lease, and twice a second once they are late.
local calm_until = now + math.floor((meta[4] or 0) / 3) + 2000
if meta[2] ~= run_id then
  if meta[2] then meta[3] = calm_until end
  redis.call('HSET', META, 'run', run_id, 'calm', meta[3] or 0)
end
-- Nor after a step of its clock, or a sleep of the whole machine: someone looks every second, so a longer gap is one. By a
-- clock that tests set there is no such rule.
local unseen = ARGV[1] == '0' and now - (meta[5] or now - 1000) or 0
if unseen < 0 or unseen >= 1000 then
  if meta[5] and (unseen < 0 or unseen > 5000) then
    meta[3] = math.max(tonumber(meta[3] or '0'), calm_until)
    redis.call('HSET', META, 'calm', meta[3])
  end
  redis.call('HSET', META, 'seen', now)
end

-- Two looks: a lease in the past is only marked; it lapses if it is still overdue a while later. A server that stalled lets
-- late renewals in between the two. While one is overdue someone looks twice a second: of a longer gap, in which nobody could
-- renew either, only 0.75 s count.
local look = -1
local late = redis.call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 16)
if #late > 0 then
  local stalled = ARGV[1] == '0' and math.max(0, now - (meta[6] or now) - 750) or 0
  redis.call('HSET', META, 'looked', now)
  for _, name in ipairs(late) do
    local seen = redis.call('HGET', OVERDUE, name)
    seen = seen and seen + stalled or now
    redis.call('HSET', OVERDUE, name, seen)
    local left_ms = math.max(1500 - (now - seen), tonumber(meta[3] or '0') - now)
    if left_ms <= 0 then
      redis.call('SADD', LAPSED, name)
      redis.call('ZREM', LEASES, name)
      redis.call('HDEL', OVERDUE, name)
      redis.call('HINCRBY', STATS, 'lapsed', 1)
    elseif look < 0 or left_ms < look then
      look = math.min(left_ms, 500)
    end
  end
  if not redis.call('ZSCORE', LEASES, consumer) then return { -1 } end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, 200)) do
  local stored = redis.call('HGET', HELD, id)
  if stored then
    local cut = string.find(stored, '\n', 1, true)
    redis.call('HSET', INDEX, id, append(string.sub(stored, cut + 1), string.sub(stored, 1, cut - 1)))
    redis.call('HDEL', HELD, id)
  end
  redis.call('ZREM', DUE, id)
end

local trimmed = true
if in_group then
  redis.call('XPENDING', LOG, homes[2].group)  -- NOGROUP, before anything is taken, if its place in the log is gone
  publish_due()
  trimmed = trim()
end

local taken, crashes, plain = {}, {}, {}
local paused, asked = meta[1] == '1', left
if alone then left = math.min(left, 1) end

-- Takes over up to `left` entries of one name's pending list in one home; true when the list is empty.
local function take_over(name, home)
  while left > 0 do
    local pending = redis.call('XPENDING', home.key, home.group, '-', '+', left, name)
    if #pending == 0 then return true end
    local wanted, aside = {}, {}
    for _, p in ipairs(pending) do
      if not alone and p[4] >= suspect_after then
        aside[#aside + 1] = p[1]
      else
        wanted[#wanted + 1] = p[1]
        crashes[home.mark .. p[1]] = p[4]
      end
    end
    if #aside > 0 then
      aside[#aside + 1] = 'JUSTID'
      redis.call('XCLAIM', home.key, home.group, suspects, 0, unpack(aside))
      redis.call('SADD', LAPSED, suspects)
    end
    if #wanted > 0 then
      local got = {}
      for _, entry in ipairs(redis.call('XCLAIM', home.key, home.group, consumer, 0, unpack(wanted))) do
        got[entry[1]] = true
        entry[1] = home.mark .. entry[1]
        taken[#taken + 1] = entry
        left = left - 1
      end
      for _, id in ipairs(wanted) do
        if not got[id] then  -- its body was trimmed by someone else: never passed over in silence, unless it was a dead letter
          redis.call('XACK', home.key, home.group, id)
          if ARGV[10] ~= '' then bury('lost-' .. id, '', '', ARGV[10], id) end
        end
      end
    end
  end
  return #redis.call('XPENDING', home.key, home.group, '-', '+', 1, name) == 0
end

if left > 0 and not paused and redis.call('SCARD', LAPSED) > 0 then
  local names = redis.call('SMEMBERS', LAPSED)
  table.sort(names)  -- '!released' sorts before every consumer
  for _, name in ipairs(names) do
    if left > 0 and (name == suspects) == alone then
      local empty = true
      for _, home in ipairs(homes) do empty = take_over(name, home) and empty end
      if empty then
        redis.call('SREM', LAPSED, name)
        for _, home in ipairs(homes) do redis.call('XGROUP', 'DELCONSUMER', home.key, home.group, name) end
      end
    end
  end
end

-- All plain: refs and bodies by turns. One that expires, or a foreign one: all go as entries, in their order, and those before.
local function put(fresh, mark)
  local flat = {}
  for i, entry in ipairs(fresh) do
    local fields = entry[2]
    if #fields ~= 2 or fields[1] ~= 'd' then
      for k = 1, #plain, 2 do
        taken[#taken + 1] = { plain[k], { 'd', plain[k + 1] } }
        crashes[plain[k]] = 0
      end
      plain = {}
      for _, each in ipairs(fresh) do
        each[1] = mark .. each[1]
        taken[#taken + 1] = each
        crashes[each[1]] = 0
      end
      flat = {}
      break
    end
    flat[2 * i - 1], flat[2 * i] = entry[1], fields[2]
  end
  left = left - #fresh
  return flat
end

-- A group that was moved back may read what it has just taken over: that is given once, and its crashes still count.
local function new_in_log(fresh)
  if #taken == 0 then return fresh end
  local new = {}
  for _, entry in ipairs(fresh) do
    local crashed = crashes['L' .. entry[1]]
    if crashed then
      redis.call('XCLAIM', LOG, homes[2].group, consumer, 0, entry[1], 'RETRYCOUNT', crashed + 1, 'JUSTID')
    else
      new[#new + 1] = entry
    end
  end
  return new
end

local logged = {}
if left > 0 and not paused and not alone then
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', left, 'STREAMS', STREAM, '>')
  if read then plain = put(read[1][2], '') end
  if in_group and left > 0 then
    read = redis.call('XREADGROUP', 'GROUP', homes[2].group, consumer, 'COUNT', left, 'STREAMS', LOG, '>')
    if read then logged = put(new_in_log(read[1][2]), 'L') end
  end
end

local flags = paused and 1 or 0
if redis.call('SISMEMBER', LAPSED, suspects) == 1 then
  local waiting = 0
  for _, home in ipairs(homes) do waiting = waiting + #redis.call('XPENDING', home.key, home.group, '-', '+', 1, suspects) end
  if waiting > 0 then
    flags = flags + 2
  else
    redis.call('SREM', LAPSED, suspects)
  end
end
-- Asked-for and got: there may be more, so another idle worker should look.
if asked > 0 and left == 0 and not alone then wake() end

local counts = {}
for i, entry in ipairs(taken) do counts[i] = crashes[entry[1]] end
if look < 0 and #plain == 0 and #taken == 0 and #logged == 0 then
  local deadline = redis.call('ZRANGEBYSCORE', LEASES, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if deadline then look = deadline - now end
end
local next_due = tonumber(redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2])
if in_group then
  local publishes = tonumber(redis.call('ZRANGE', LOG_DUE, 0, 0, 'WITHSCORES')[2])
  if publishes and (not next_due or publishes < next_due) then next_due = publishes end
  if not trimmed then next_due = now end  -- nobody sleeps before the rest is removed
end
return { now, next_due and math.max(0, next_due - now) or -1, flags, taken, counts, plain, look, logged }
