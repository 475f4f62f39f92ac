-- KEYS: leases lapsed meta stats
-- CONSTANTS: overdue_ms
-- Looks at leases that are past their deadline, in two looks. `run_id` is the server's. Returns what is noted
-- of the queue, and in how many ms somebody should look again, or -1.
-- An empty run_id: the user may not ask for it, so that a restart is not noticed here.
-- The score of a lease is its deadline. The first look that sees it overdue changes the score to the time of that look, less MARKED;
-- a renewal writes a deadline again.
local MARKED = 1e15
local CHECKED_AT_ONCE = 100  -- how many leases one look marks, and how many it lapses
local MENDED = 1000  -- how many one look mends after the clock was set back
local RUNS_NOTED = 128

local function check_leases(run_id)
  local meta = redis.call(
    'HMGET', META, 'paused', 'run', 'calm', 'longest', 'seen', 'looked', 'pending', 'sweep', 'around', 'hurry', 'rewound'
  )

  -- A server that was just restarted has been away for nobody knows how long: no lease lapses until all had time to be renewed.
  -- Keepers renew every third of a lease, and twice a second once they are late. A proxy may lead to several servers: the lives
  -- that were seen are noted by the first 8 characters of their run ids, and only one that is not among them is new.
  local longest, run = tonumber(meta[4] or '0'), string.sub(run_id, 1, 8)
  local calm_until = now + math.floor(longest / 3) + 2000
  if run ~= '' and not (meta[2] and string.find(meta[2], run, 1, true)) then
    if meta[2] then meta[3] = calm_until end
    redis.call('HSET', META, 'run', run .. ' ' .. string.sub(meta[2] or '', 1, 9 * (RUNS_NOTED - 1)), 'calm', meta[3] or 0)
  end
  -- Nor after a step of its clock, or a sleep of the whole machine: someone looks every second, so a longer gap is one. By a
  -- clock that tests set there is no such rule.
  local unseen = ARGV[1] == '0' and now - (meta[5] or now - 1000) or 0
  if unseen < 0 or unseen >= 1000 then
    local more = 0
    if meta[5] and unseen < 0 then
      -- It was set back: deadlines lie too far ahead, and so do first looks.
      local first_looks = now - (redis.call('HGET', META, 'stalled') or 0) - MARKED
      for _, bound in ipairs({ { now + longest, '+inf' }, { first_looks, '(0' } }) do
        local far = redis.call('ZRANGEBYSCORE', LEASES, '(' .. string.format('%.0f', bound[1]), bound[2], 'LIMIT', 0, MENDED)
        for _, name in ipairs(far) do redis.call('ZADD', LEASES, bound[1], name) end
        more = math.max(more, #far)
      end
      meta[3] = calm_until
      redis.call('HSET', META, 'calm', meta[3])
    elseif meta[5] and unseen > 5000 then
      meta[3] = math.max(tonumber(meta[3] or '0'), calm_until)
      redis.call('HSET', META, 'calm', meta[3])
    end
    if more < MENDED then redis.call('HSET', META, 'seen', now) end  -- else the next look mends the rest
  end

  -- Two looks: a lease in the past is only marked; it lapses if it is still overdue a while later. A server that stalled lets
  -- late renewals in between the two.
  if #redis.call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 1) == 0 then return meta, -1 end
  local calm_ms = tonumber(meta[3] or '0') - now
  -- While one is overdue someone looks twice a second. Of a longer gap, in which nobody could renew either, only 0.75 s count.
  local stalled = tonumber(redis.call('HGET', META, 'stalled') or '0')
  local gap = ARGV[1] == '0' and now - (meta[6] or now) - 750 or 0
  if gap > 0 then stalled = redis.call('HINCRBY', META, 'stalled', gap) end
  redis.call('HSET', META, 'looked', now)
  local at, lapsed = now - stalled, {}
  if calm_ms <= 0 then
    lapsed = redis.call('ZRANGEBYSCORE', LEASES, '-inf', at - OVERDUE_MS - MARKED, 'LIMIT', 0, CHECKED_AT_ONCE)
    if #lapsed > 0 then
      redis.call('SADD', LAPSED, unpack(lapsed))
      redis.call('ZREM', LEASES, unpack(lapsed))
      redis.call('HINCRBY', STATS, 'lapsed', #lapsed)
    end
  end
  local late, marks = redis.call('ZRANGEBYSCORE', LEASES, 0, now, 'LIMIT', 0, CHECKED_AT_ONCE), {}
  for i, name in ipairs(late) do marks[2 * i - 1], marks[2 * i] = at - MARKED, name end
  if #late > 0 then redis.call('ZADD', LEASES, unpack(marks)) end
  if #lapsed == CHECKED_AT_ONCE or #late == CHECKED_AT_ONCE then return meta, 0 end
  local first = redis.call('ZRANGEBYSCORE', LEASES, '-inf', '(0', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if not first then return meta, -1 end
  return meta, math.min(math.max(OVERDUE_MS - (at - MARKED - first), calm_ms, 1), 500)
end
