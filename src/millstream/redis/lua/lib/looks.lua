-- KEYS: leases overdue lapsed meta stats
-- Looks at leases that are past their deadline, in two looks. `run_id` is the server's. What is noted of the queue, as META_WORDS
-- says, and in how many ms somebody should look again, or -1.
-- An empty run_id: the user may not ask for it, so that a restart is not noticed here.
local META_WORDS = { 'paused', 'run', 'calm', 'longest', 'seen', 'looked', 'pending', 'sweep', 'strayed', 'rewound' }
local function look_at_leases(run_id)
  local meta = redis.call('HMGET', META, unpack(META_WORDS))

  -- A server that was just restarted has been away for nobody knows how long: no lease lapses until all had time to be renewed.
  -- Keepers renew every third of a lease, and twice a second once they are late.
  local calm_until = now + math.floor((meta[4] or 0) / 3) + 2000
  if run_id ~= '' and meta[2] ~= run_id then
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
  end
  return meta, look
end
