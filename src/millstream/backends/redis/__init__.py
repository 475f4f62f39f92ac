"""The Redis backend: the Broker contract on Redis 7.0+ and Valkey 7.2+. No other folder spells a key or a command."""

from millstream.backends.redis.broker import RedisBroker

__all__ = ["RedisBroker"]
