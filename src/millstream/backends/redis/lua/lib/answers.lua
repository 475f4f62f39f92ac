-- KEYS: answer
-- CONSTANTS: request_ms
-- The answers to named requests, stored for as long as a request may be sent again (REQUEST_MS). A request with an empty name
-- is never sent again.
local function answered(request) return request ~= '' and redis.call('GET', ANSWER .. request) end

local function answer(request, said)
  if request ~= '' then redis.call('SET', ANSWER .. request, said, 'PX', REQUEST_MS) end
  return said
end
