-- KEYS: answer
-- The answers to named requests, kept for as long as a request may be sent again (REQUEST_SECONDS). An empty name: no caller would
-- send it again.
local function answered(request) return request ~= '' and redis.call('GET', ANSWER .. request) end

local function answer(request, said)
  if request ~= '' then redis.call('SET', ANSWER .. request, said, 'PX', 60000) end
  return said
end
