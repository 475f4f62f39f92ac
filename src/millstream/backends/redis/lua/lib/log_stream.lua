-- KEYS: log
-- Adds the topic's log to the streams of a group. Uses `streams` and `log_group`.
streams[2] = { key = LOG, group = log_group, mark = 'L' }
