-- Move a group to another position in its topic's log: back, to receive events again, or forward, to skip events.
-- KEYS: ahead meta
-- USES: groups group_positions order notes wake answers
-- ARGV: clock, group, to ('$': the end, or the entry after which the group continues), request
-- Returns '1', or '0' if the group does not exist.
local known = answered(ARGV[4])
if known then return known end
if redis.call('SISMEMBER', GROUPS, ARGV[2]) == 0 then return '0' end
local was = group_positions()[ARGV[2]]
if move_group('SETID', ARGV[2], ARGV[3]).err then move_group('CREATE', ARGV[2], ARGV[3]) end  -- the group had lost its position
local at = group_positions()[ARGV[2]]
note(ARGV[2], at)
if was and not before(was, at) then  -- see lib/ahead.lua; messages delivered since an earlier move are delivered again
  local last = redis.call('HGET', META, 'rewound')
  redis.call('HSET', META, 'rewound', last and before(was, last) and last or was)
  redis.call('UNLINK', AHEAD)
end
wake()
return answer(ARGV[4], '1')
