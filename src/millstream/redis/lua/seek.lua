-- Move a group to another place in its topic's log: back, to be given entries again, or forward, past some.
-- KEYS: log meta
-- USES: wake
-- ARGV: clock, group, to ('$': the end; or after which entry)
-- Returns 1, or 0 if there is no such group.
local moved = redis.pcall('XGROUP', 'SETID', LOG, ARGV[2], ARGV[3])
if moved.err then return 0 end
for _, info in ipairs(redis.call('XINFO', 'GROUPS', LOG)) do
  local name, at
  for k = 1, #info, 2 do
    if info[k] == 'name' then name = info[k + 1] elseif info[k] == 'last-delivered-id' then at = info[k + 1] end
  end
  if name == ARGV[2] then redis.call('HSET', META, 'cursor', at) end
end
wake()
return 1
