-- Remove a group with all its messages and dead letters. The topic no longer keeps events for it.
-- KEYS: log groups stream held due index leases lapsed wake dead meta stats waiters turns blocked keyed stopped stopped_letters sweeps ahead
-- USES: answers
-- ARGV: clock, group, request
-- Returns '1', or '0' if the group did not exist.
if answered(ARGV[3]) then return '1' end
if redis.call('SREM', GROUPS, ARGV[2]) == 0 then return '0' end
redis.pcall('XGROUP', 'DESTROY', LOG, ARGV[2])
for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end
for _, word in ipairs({ 'leases', 'lapsed', 'wake', 'stats', 'due', 'handling' }) do redis.call('UNLINK', DEAD .. ':' .. word) end
return answer(ARGV[3], '1')
