-- Where a job is now.
-- KEYS: ending
-- USES: locate
-- FLAGS: no-writes
-- ARGV: clock, group, id
-- Returns {position or '', ending or ''}.
return { locate(ARGV[2], ARGV[3]) or '', redis.call('GET', ENDING .. ARGV[3]) or '' }
