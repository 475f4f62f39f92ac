-- Part of a claim: reads ready entries, from the queue's stream and then from the topic's log. Uses the script's locals
-- `left`, `taken`, `crashes` and `fresh`.

local function put_as_entries(flat, mark)
  for k = 1, #flat, 2 do
    taken[#taken + 1] = { mark .. flat[k], { 'd', flat[k + 1] } }
    crashes[mark .. flat[k]] = 0
  end
end

-- Returns a flat list of refs and bodies if all entries are plain. If one expires or comes from another program, all of them,
-- and all that were read before, are returned as entries instead, so that their order is kept.
local function put(fresh, mark, before)
  local flat = {}
  for i, entry in ipairs(fresh) do
    local fields = entry[2]
    if #fields ~= 2 or fields[1] ~= 'd' then
      put_as_entries(plain, '')
      put_as_entries(before, mark)
      plain, before = {}, {}
      for _, each in ipairs(fresh) do
        each[1] = mark .. each[1]
        taken[#taken + 1] = each
        crashes[each[1]] = 0
      end
      flat = {}
      break
    end
    flat[2 * i - 1], flat[2 * i] = entry[1], fields[2]
  end
  left = left - #fresh
  if #before == 0 then return flat end
  for _, part in ipairs(flat) do before[#before + 1] = part end
  return before
end

-- After a seek back, a group may read an entry that it has just taken over. The entry is delivered once, and its crashes still
-- count.
local function new_in_log(fresh)
  if #taken == 0 then return fresh end
  local new = {}
  for _, entry in ipairs(fresh) do
    local crashed = crashes['L' .. entry[1]]
    if crashed then
      redis.call('XCLAIM', LOG, streams[2].group, consumer, 0, entry[1], 'RETRYCOUNT', crashed + 1, 'JUSTID')
    else
      new[#new + 1] = entry
    end
  end
  return new
end

-- Reads past entries that are set aside until there is something to deliver, within the limits READ_ON and ROUNDS.
local READ_ON, ROUNDS = 100, 50
local function read(stream)
  local flat, aside, rounds, took_over = {}, 0, 0, #taken > 0
  repeat
    rounds = rounds + 1
    local read = fresh  -- read at the beginning of this script
    fresh = nil
    if not read then
      local found = redis.call('XREADGROUP', 'GROUP', stream.group, consumer, 'COUNT', left, 'STREAMS', stream.key, '>')
      if not found then return flat end
      read = found[1][2]
    end
    local new = stream.mark ~= '' and new_in_log(read) or read
    local given = in_turn(new, stream)
    aside = aside + #new - #given
    left = left - (#read - #new)
    flat = put(given, stream.mark, flat)
    -- If entries were taken over, read on: only this call knows which ones, and after a seek back the log may contain them
    -- again.
    local enough = left < asked and not took_over
  until left == 0 or enough or #new == #given or aside >= READ_ON or rounds == ROUNDS
  if left > 0 and aside > 0 then unfinished = true end
  return flat, left > 0 and aside > 0
end
