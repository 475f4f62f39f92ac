-- Clear a stopped key. Each call handles a limited number of its dead letters.
-- KEYS: stopped stopped_letters sweeps
-- USES: answers
-- ARGV: clock, key, replay (0|1), id_ttl_ms, dead_max_count, dead_oldest_ms (age), request
-- Returns two numbers as text: dead letters replayed by this call, and 1 if another call is needed or 0 if the key is cleared.
-- Returns '' if the key is not stopped.
local key, replay, id_ttl_ms = ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
local dead_max_count, dead_oldest_ms, request = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local known = answered(request)
if known then return known end
-- THEN USES: clock wake members tell ending dead_letter keyed turns held handling letters stopping retire

-- Either `turns` or `stopped` may be lost. Without `turns`, a message of the key may be running already.
local turn = redis.call('HGET', TURNS, key)
if turn ~= 's' and redis.call('HEXISTS', STOPPED, key) == 0 then return '' end
local begins = of_key(key)
local first, last = '[' .. begins, '(' .. begins .. '\255'
local n = 0
if replay then
  redis.call('LREM', SWEEPS, 0, key)  -- messages that are still blocked stay blocked
  local members = redis.call('ZRANGEBYLEX', STOPPED_LETTERS, first, last, 'LIMIT', 0, SWEEP)
  for _, member in ipairs(members) do
    local position, id = split_member(member, begins)
    local letter = letter_of(id)
    redis.call('ZREM', STOPPED_LETTERS, member)
    if letter and letter.k == key then
      exhume(letter)
      block(id, letter.d, '0', key, position, topic and '' or letter.t)
      redis.call('DEL', ENDING .. id)
      redis.call('PERSIST', GIVEN .. id)
      n = n + 1
    end
  end
  if #members == SWEEP then return answer(request, n .. ' 1') end
else
  local done = sweep(key)
  retire(dead_max_count, now - dead_oldest_ms, stopped_letters)
  if not done then return answer(request, '0 1') end
  redis.call('LREM', SWEEPS, 0, key)
  redis.call('ZREMRANGEBYLEX', STOPPED_LETTERS, first, last)
end
redis.call('HDEL', STOPPED, key)
if (not turn or turn == 's') and pass_turns({ key }) > 0 then wake() end
return answer(request, n .. ' 0')
