-- KEYS: topic log stream
streams[2] = { key = LOG, group = string.sub(STREAM, #TOPIC + 4, -3), mark = 'L' }  -- the stream is <topic>:g:<group>:s
