-- Append a message to the list of a name.
-- KEYS: control
-- ARGV: clock, name, message, ttl_ms
redis.call('RPUSH', CONTROL .. ARGV[2], ARGV[3])
return redis.call('PEXPIRE', CONTROL .. ARGV[2], ARGV[4])
