-- KEYS: blocked turns
-- Part of `around`: keys with blocked messages of which none has the turn, because `turns` was lost. The first blocked message
-- gets the turn. A stopped key is stopped again. Starts after `cursor`. Returns the number found, and the next cursor or '' at
-- the end.
local function find_keys_without_turn(cursor)
  local keys, found = {}, 0
  for _ = 1, 16 do
    local member = redis.call('ZRANGEBYLEX', BLOCKED, cursor == '' and '-' or '(' .. cursor, '+', 'LIMIT', 0, 1)[1]
    if not member then
      cursor = ''
      break
    end
    local _, cut = string.find(member, '\0\0', 1, true)
    local key = string.gsub(string.sub(member, 1, cut - 2), '%z\1', '\0')
    if redis.call('HEXISTS', TURNS, key) == 0 then
      found = found + 1
      if not stop_again(key) then keys[#keys + 1] = key end
    end
    cursor = string.sub(member, 1, cut) .. '\255'
  end
  if #keys > 0 and pass_turns(keys) > 0 then wake() end
  return found, cursor
end
