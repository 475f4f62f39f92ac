-- KEYS: lapsed
-- Part of a claim: takes over released messages and those of lapsed consumers. Uses the script's locals `left`, `taken`,
-- `crashes` and `alone`.

-- Takes over up to `left` entries of one consumer in one stream. True when its pending list is empty. The effort of one claim
-- is limited: an entry that is set aside as suspect costs 1; a missing or moved entry, or a consumer, costs 4.
local effort = 400
local function take_over(name, stream)
  while left > 0 and effort > 0 do
    local pending = redis.call('XPENDING', stream.key, stream.group, '-', '+', math.min(left, 100), name)
    if #pending == 0 then return true end
    local wanted, aside = {}, {}
    for _, p in ipairs(pending) do
      if not alone and p[4] >= suspect_after then
        aside[#aside + 1] = p[1]
      else
        wanted[#wanted + 1] = p[1]
        crashes[stream.mark .. p[1]] = p[4]
      end
    end
    if #aside > 0 then
      aside[#aside + 1] = 'JUSTID'
      redis.call('XCLAIM', stream.key, stream.group, suspects, 0, unpack(aside))
      redis.call('SADD', LAPSED, suspects)
      effort = effort - #aside
    end
    if #wanted > 0 then
      local got = {}
      for _, entry in ipairs(redis.call('XCLAIM', stream.key, stream.group, consumer, 0, unpack(wanted))) do
        got[entry[1]] = true
        local ref, words = stream.mark .. entry[1], has_key(entry[2]) and said(entry[2])
        if catching_up and words and stream.mark ~= '' and not alone and comes_again(order_position(entry[1])) then
          take_out_of_log(entry[1], words)
          crashes[ref], effort = nil, effort - 4
        else
          if words then
            if catching_up and stream.mark == '' then give_ahead(words.o or order_position(entry[1])) end
            entry[2], keyed = as_claimed(words), true
            crashes[keyed_ref(ref, words)] = crashes[ref]
            ref = keyed_ref(ref, words)
          end
          entry[1] = ref
          taken[#taken + 1] = entry
          left = left - 1
        end
      end
      for _, id in ipairs(wanted) do
        if not got[id] then  -- another program deleted it: it becomes a dead letter, unless it was one
          redis.call('XACK', stream.key, stream.group, id)
          effort = effort - 4
          if not of_letters then
            dead_letter('lost-' .. id, '', '', lost_letter, id)
            strayed, stopped_letters = true, stopped_letters + 1
          end
        end
      end
    end
  end
  return #redis.call('XPENDING', stream.key, stream.group, '-', '+', 1, name) == 0
end

-- Takes over from all lapsed consumers, the pseudo-consumers first. True: there is more to take over than one claim may.
local function take_over_lapsed()
  local lapsed = redis.call('SCARD', LAPSED)
  if lapsed == 0 then return false end
  -- Sorted, because '!released' sorts before every consumer. Of more than 64 consumers, a random sample.
  local names = lapsed <= 64 and redis.call('SMEMBERS', LAPSED) or redis.call('SRANDMEMBER', LAPSED, 64)
  for _, name in ipairs(lapsed > 64 and { released, suspects } or {}) do
    if redis.call('SISMEMBER', LAPSED, name) == 1 then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    if left > 0 and effort > 0 and (name == suspects) == alone then
      effort = effort - 4
      local empty = true
      for _, stream in ipairs(streams) do empty = take_over(name, stream) and empty end
      if empty then
        redis.call('SREM', LAPSED, name)
        for _, stream in ipairs(streams) do redis.call('XGROUP', 'DELCONSUMER', stream.key, stream.group, name) end
      end
    end
  end
  return left > 0 and not alone and (effort <= 0 or lapsed > 64)
end
