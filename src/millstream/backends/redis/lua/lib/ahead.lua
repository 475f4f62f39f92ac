-- KEYS: ahead meta
-- Catching up after a seek back. Messages that waited at that moment (retries, blocked and released) are delivered once. Some
-- of them are delivered before the group reaches their positions in the log. `ahead` holds these positions, and the log skips
-- them. `rewound`, in `meta`, is the last entry that the group had read before the seek. Nothing after it is delivered again.
local reached, rewound

-- True while the group has not caught up. `last` is the value of `rewound`.
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

-- Whether the group will reach this position in the log again.
local function comes_again(position) return position > reached and position <= rewound end

local function give_ahead(position)
  if comes_again(position) then redis.call('SADD', AHEAD, position) end
end

-- Whether the message was delivered ahead. Called once per message, when the log is read, since it removes the position.
local function was_ahead(position) return redis.call('SREM', AHEAD, position) == 1 end

-- Moves a message that was released or left by a lapsed consumer from the log to the group's own stream. If it stayed pending
-- in the log, reading on would take it from the consumer that holds it by then.
local function take_out_of_log(entry, words)
  local position = order_position(entry)
  redis.call('XACK', LOG, streams[2].group, entry)
  supersede(words.i)
  redis.call('HSET', INDEX, words.i, append_keyed(words.i, words.d, words.x or '0', words.k, position, ''))
end
