"""A temporary namespace: measure the server's memory, and delete the namespace. Other data on the server is not touched."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from millstream.backends.redis.keys import patterns
from millstream.config import parse_url
from millstream.errors import BrokerUnavailable

PAGE = 1_000
"""Keys scanned and deleted per call, so that no call blocks the server for long."""


class Sandbox:
    """One namespace on one server. Every method may raise BrokerUnavailable."""

    def __init__(self, url: str, namespace: str) -> None:
        self._redis: Any = Redis.from_url(url, protocol=2)  # pyright: ignore[reportUnknownMemberType]
        self._namespace = namespace
        self._where = parse_url(url).safe

    def used_memory(self) -> int:
        """Return the memory that the whole server uses, in bytes."""
        with self._translated():
            used: int = self._redis.info("memory")["used_memory"]
            return used

    def erase(self) -> int:
        """Delete every key of the namespace and nothing else. Return the number of deleted keys."""
        erased = 0
        with self._translated():
            for pattern in patterns(self._namespace):
                cursor = -1
                while cursor:
                    cursor, names = self._redis.scan(max(0, cursor), match=pattern, count=PAGE)
                    if names:
                        erased += self._redis.unlink(*names)
        return erased

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except RedisError as error:
            raise BrokerUnavailable(f"{self._where} cannot be reached: {error}") from error
