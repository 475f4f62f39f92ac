-- Claim messages: first released messages and those of lapsed consumers, then ready ones.
-- Also promotes messages that are due, and checks overdue leases.
-- KEYS: stream leases meta due held lapsed stats
-- USES: clock wake streams lease_checks
-- OF A GROUP: log_group log_stream
-- ARGV: clock, group, consumer, count, alone (0|1), suspect_after, run_id, released, suspects (names of the pseudo-consumers),
--   lost_letter ('' for an address of dead letters, where a missing entry was replayed, purged or too old), id_ttl_ms,
--   dead_max_count, dead_oldest_ms (age)
-- Returns {now, next_due_ms or -1, flags, entries, crashes of each entry, plain entries, ms until the next lease check or -1,
-- plain entries of the log}, or {-1} if the consumer has no lease.
-- Flags: 1 paused, 2 suspects wait, 4 some messages have keys, 8 `around` must run.
-- A plain entry has a body and no other field. Plain entries are a flat list of alternating refs and bodies. (Measured: a
-- third less server time than entries.)
local group, consumer, left, alone = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local suspect_after, run_id, released, suspects = tonumber(ARGV[6]), ARGV[7], ARGV[8], ARGV[9]
local lost_letter = ARGV[10]
local of_letters = lost_letter == ''
if not redis.call('ZSCORE', LEASES, consumer) then return { -1 } end
local meta, look = check_leases(run_id)
if not redis.call('ZSCORE', LEASES, consumer) then return { -1 } end

-- `around` must run every two seconds, and immediately if a turn may have lost its message or there is more to find.
local around, hurry, flags = meta[9], meta[10], 0
if of_letters then around, hurry = unpack(redis.call('HMGET', META, 'letters_around', 'letters_hurry')) end
local since = now - (around or 0)
if hurry or since < 0 or since >= 2000 then
  redis.call('HSET', META, of_letters and 'letters_around' or 'around', now)
  flags = 8
end
local paused, first_due = meta[1] == '1', tonumber(redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2])
local due = first_due and first_due <= now

-- Ms until the next deadline of a lease, or -1. A waiting consumer must check leases then.
local function next_check()
  local deadline = redis.call('ZRANGEBYSCORE', LEASES, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return deadline and deadline - now or -1
end

-- The most common case: a queue where nothing is due or lapsed. If all entries are plain, they are the answer. Otherwise the
-- rest of this script continues with them.
local fresh
if left > 0 and not (paused or alone or due or in_group or of_letters or meta[8])
  and redis.call('EXISTS', LAPSED) == 0 then
  local found = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', left, 'STREAMS', STREAM, '>')
  local flat, plain = {}, true
  fresh = found and found[1][2] or {}
  for i, entry in ipairs(fresh) do
    local fields = entry[2]
    if #fields ~= 2 or fields[1] ~= 'd' then
      plain = false
      break
    end
    flat[2 * i - 1], flat[2 * i] = entry[1], fields[2]
  end
  if plain then
    if #fresh == left then wake() end
    if look < 0 and #fresh < left then look = next_check() end
    return { now, first_due and first_due - now or -1, flags, {}, {}, flat, look, {} }
  end
end
local id_ttl_ms, dead_max_count, dead_oldest_ms = tonumber(ARGV[11]), tonumber(ARGV[12]), ARGV[13]
-- THEN USES: append tell ending dead_letter members keyed keyed_entry turns held stopping sweep_on handling retire
-- THEN OF A GROUP: groups group_positions log order notes delayed trim supersede ahead

if due then
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, 200)) do
    if of_letters then
      redis.call('XCLAIM', STREAM, group, released, 0, id, 'RETRYCOUNT', 0, 'FORCE', 'JUSTID')
      redis.call('SADD', LAPSED, released)
    else
      make_ready(id)
    end
    redis.call('ZREM', DUE, id)
  end
end
local unfinished = meta[8] and not of_letters and not sweep_on()  -- true: the next claim should follow immediately

local trimmed, catching_up = true, false
if in_group then
  redis.call('XPENDING', LOG, streams[2].group, '-', '+', 1)  -- NOGROUP, before anything is claimed, if it lost its position
  publish_due()
  trimmed = trim()
  catching_up = meta[11] and catches_up(meta[11])
end

local taken, crashes, plain, keyed, strayed = {}, {}, {}, false, false
local asked = left
if alone then left = math.min(left, 1) end

-- THEN USES: take_over
if left > 0 and not paused and take_over_lapsed() then unfinished = true end

-- THEN USES: key_gate reading
local logged = {}
if left > 0 and not paused and not alone then
  local unread
  plain, unread = read(streams[1])
  if in_group and left > 0 and not unread then logged = read(streams[2]) end  -- its own stream comes before the log
end

-- If the consumer group of dead letters was lost, it reads from the beginning again. Skip letters that wait for another
-- attempt or are marked as unhandled.
if of_letters and #taken > 0 and redis.call('EXISTS', DEAD .. ':handling') == 1 then
  local given = {}
  for _, entry in ipairs(taken) do
    local note = add_note(entry)
    if note and (string.byte(note) == 117 or redis.call('ZSCORE', DUE, entry[1])) then  -- 'u'
      redis.call('XACK', STREAM, group, entry[1])
      unfinished = true
    else
      given[#given + 1] = entry
    end
  end
  taken = given
end

flags = flags + (paused and 1 or 0) + (keyed and 4 or 0)
if strayed and hurry ~= '1' then  -- with '1', `around` has yet to check the turns anyway
  redis.call('HSET', META, 'hurry', 2, 'at', '')
  if flags < 8 then flags = flags + 8 end
end
if redis.call('SISMEMBER', LAPSED, suspects) == 1 then
  local waiting = 0
  for _, stream in ipairs(streams) do waiting = waiting + #redis.call('XPENDING', stream.key, stream.group, '-', '+', 1, suspects) end
  if waiting > 0 then
    flags = flags + 2
  else
    redis.call('SREM', LAPSED, suspects)
  end
end
-- The claim is full, so there may be more: wake another idle worker.
if asked > 0 and left == 0 and not alone then wake() end

local counts = {}
for i, entry in ipairs(taken) do counts[i] = crashes[entry[1]] end
if look < 0 and left > 0 then look = next_check() end
local next_due = tonumber(redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2])
if in_group then
  local publishes = tonumber(redis.call('ZRANGE', LOG_DUE, 0, 0, 'WITHSCORES')[2])
  if publishes and (not next_due or publishes < next_due) then next_due = publishes end
  if not trimmed then unfinished = true end
end
if unfinished then next_due = now end  -- claim again immediately, to trim, read or find the rest
if stopped_letters > 0 then retire(dead_max_count, now - dead_oldest_ms, stopped_letters) end
return { now, next_due and math.max(0, next_due - now) or -1, flags, taken, counts, plain, look, logged }
