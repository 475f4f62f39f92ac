-- Move a group to another place in its topic's log: back, to be given entries again, or forward, past some.
-- USES: groups places order notes wake answers
-- ARGV: clock, group, to ('$': the end; or after which entry), request
-- Returns '1', or '0' if there is no such group.
local known = answered(ARGV[4])
if known then return known end
if redis.call('SISMEMBER', GROUPS, ARGV[2]) == 0 then return '0' end
if put_at('SETID', ARGV[2], ARGV[3]).err then put_at('CREATE', ARGV[2], ARGV[3]) end  -- it had lost its place
note(ARGV[2], places()[ARGV[2]])
wake()
return answer(ARGV[4], '1')
