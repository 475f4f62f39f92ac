"""The Redis backend: the Broker contract on Redis 7.0+ and Valkey 7.2+. Only this folder contains Redis keys and commands."""

from millstream.backends.redis.broker import RedisBroker

__all__ = ["RedisBroker"]
