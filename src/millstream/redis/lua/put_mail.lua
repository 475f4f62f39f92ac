-- Put mail into a box.
-- KEYS: box
-- ARGV: clock, name, mail, ttl_ms
redis.call('RPUSH', BOX .. ARGV[2], ARGV[3])
return redis.call('PEXPIRE', BOX .. ARGV[2], ARGV[4])
