-- KEYS: log
-- Uses `streams` and `log_group`.
streams[2] = { key = LOG, group = log_group, mark = 'L' }
