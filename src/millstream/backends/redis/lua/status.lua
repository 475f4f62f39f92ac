-- Return the location of a job.
-- KEYS: ending
-- USES: locate
-- FLAGS: no-writes
-- ARGV: clock, group, id
-- Returns {location or '', ending or ''}.
return { locate(ARGV[2], ARGV[3]) or '', redis.call('GET', ENDING .. ARGV[3]) or '' }
