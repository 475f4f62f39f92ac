-- Send a message to a name. All messages of the name expire ttl_ms after the last one.
-- KEYS: control
-- ARGV: clock, name, message, ttl_ms
-- Returns 1.
redis.call('RPUSH', CONTROL .. ARGV[2], ARGV[3])
return redis.call('PEXPIRE', CONTROL .. ARGV[2], ARGV[4])
