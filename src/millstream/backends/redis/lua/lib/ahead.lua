-- KEYS: ahead meta
-- A group that was moved back is given once what waited at that moment: retries, what is blocked, what was handed back. Some of it is
-- given before the log is read up to its position. `ahead` holds these positions, and the log is not asked for them again. `rewound`, in
-- `meta`, is the last entry that the group had been given: behind it nothing comes again.
local reached, rewound

-- True while the group has not caught up; `last` is what `rewound` says.
local function catches_up(last)
  local at = group_positions()[streams[2].group]
  if at and before(at, last) then
    reached, rewound = order_position(at), order_position(last)
    return true
  end
  redis.call('UNLINK', AHEAD)
  redis.call('HDEL', META, 'rewound')
  return false
end

-- Whether the log is still to be read up to this position.
local function comes_again(position) return position > reached and position <= rewound end

local function give_ahead(position)
  if comes_again(position) then redis.call('SADD', AHEAD, position) end
end

-- Whether it was given ahead; asked once, when the log is read.
local function was_ahead(position) return redis.call('SREM', AHEAD, position) == 1 end

-- What was handed back or left behind in the log goes to the group's own stream: while it is pending in the log, reading on would take it
-- from whoever holds it by then.
local function take_out_of_log(entry, words)
  local position = order_position(entry)
  redis.call('XACK', LOG, streams[2].group, entry)
  supersede(words.i)
  redis.call('HSET', INDEX, words.i, append_keyed(words.i, words.d, words.x or '0', words.k, position, ''))
end
