-- Where a job is now.
-- KEYS: ending
-- USES: place
-- FLAGS: no-writes
-- ARGV: clock, group, id
-- Returns {place or '', ending or ''}.
return { place(ARGV[2], ARGV[3]) or '', redis.call('GET', ENDING .. ARGV[3]) or '' }
