"""RedisMailbox: each box a list that expires."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from millstream.broker import Mailbox


class RedisMailbox(Mailbox):
    """Puts and takes through the broker's connection."""

    def __init__(self, run: Callable[..., Awaitable[Any]]) -> None:
        self._run = run

    async def put(self, box: str, mail: bytes, ttl: float) -> None:
        await self._run("put_mail", None, box, mail, round(ttl * 1000))

    async def take(self, box: str) -> list[bytes]:
        return list(await self._run("take_mail", None, box))
