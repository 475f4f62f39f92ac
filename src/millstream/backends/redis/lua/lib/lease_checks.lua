-- KEYS: leases lapsed meta stats
-- CONSTANTS: overdue_ms
-- Lease checks: the first check marks an overdue lease, a later check lapses it. `run_id` is the server's. If it is empty,
-- because the user may not read it, a restart of the server is not noticed. Returns fields of `meta`, and ms until the next
-- check or -1. The score of a lease is its deadline. The check that first finds it overdue replaces the score with the time of
-- the check minus MARKED. A renewal writes a deadline again.
local MARKED = 1e15
local CHECKED_AT_ONCE = 100  -- maximum leases that one check marks, and that it lapses
local MENDED = 1000  -- maximum leases that one check corrects after the clock was set back
local RUNS_NOTED = 128

local function check_leases(run_id)
  local meta = redis.call(
    'HMGET', META, 'paused', 'run', 'calm', 'longest', 'seen', 'looked', 'pending', 'sweep', 'around', 'hurry', 'rewound'
  )

  -- After a restart, it is unknown how long the server was down. No lease lapses until every consumer had time to renew.
  -- Leases are renewed every third of their duration, and twice a second when late. A proxy may lead to several servers: `run`
  -- holds the first 8 characters of each run id that was seen, and only an unknown one counts as a restart.
  local longest, run = tonumber(meta[4] or '0'), string.sub(run_id, 1, 8)
  local calm_until = now + math.floor(longest / 3) + 2000
  if run ~= '' and not (meta[2] and string.find(meta[2], run, 1, true)) then
    if meta[2] then meta[3] = calm_until end
    redis.call('HSET', META, 'run', run .. ' ' .. string.sub(meta[2] or '', 1, 9 * (RUNS_NOTED - 1)), 'calm', meta[3] or 0)
  end
  -- The same applies after a step of the server's clock, or after the whole machine slept. Leases are checked every second, so
  -- a longer gap means one of these. A clock that tests set is exempt.
  local unseen = ARGV[1] == '0' and now - (meta[5] or now - 1000) or 0
  if unseen < 0 or unseen >= 1000 then
    local more = 0
    if meta[5] and unseen < 0 then
      -- The clock was set back: deadlines and marks are too far in the future.
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
    if more < MENDED then redis.call('HSET', META, 'seen', now) end  -- otherwise the next check corrects the rest
  end

  -- The first check only marks an overdue lease. The lease lapses if it is still overdue OVERDUE_MS later. If the server had
  -- stalled, late renewals arrive between the two checks.
  if #redis.call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 1) == 0 then return meta, -1 end
  local calm_ms = tonumber(meta[3] or '0') - now
  -- While a lease is overdue, it is checked twice a second. In a longer gap, nobody could renew either, so only 0.75 s of it
  -- count.
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
