-- KEYS: topic log stream
local log_group = string.sub(STREAM, #TOPIC + 4, -3)  -- the stream is <topic>:g:<group>:s
