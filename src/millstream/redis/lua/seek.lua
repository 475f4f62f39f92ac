-- Move a group to another place in its topic's log: back, to be given entries again, or forward, past some.
-- KEYS: meta
-- USES: groups wake
-- ARGV: clock, group, to ('$': the end; or after which entry)
-- Returns 1, or 0 if there is no such group.
if redis.call('SISMEMBER', GROUPS, ARGV[2]) == 0 then return 0 end
if redis.pcall('XGROUP', 'SETID', LOG, ARGV[2], ARGV[3]).err then
  redis.call('XGROUP', 'CREATE', LOG, ARGV[2], ARGV[3], 'MKSTREAM')  -- it had lost its place
end
redis.call('HSET', META, 'cursor', places()[ARGV[2]])
wake()
return 1
