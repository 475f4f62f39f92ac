-- List running jobs by consumer.
-- USES: streams page pending
-- OF A GROUP: log_group log_stream
-- FLAGS: no-writes
-- ARGV: clock, group, limit, wanted, after (an entry id, or ''), after_name (the consumer that holds it)
-- Returns {time_ms, rows {entry, fields, name, idle_ms, deliveries}}.
local t = redis.call('TIME')
put_pending(true, ARGV[5], ARGV[6])
return { t[1] * 1000 + math.floor(t[2] / 1000), page }
