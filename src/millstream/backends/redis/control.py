"""The control channel on Redis: one list per name, which expires."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from millstream.broker import ControlChannel


class RedisControlChannel(ControlChannel):
    """Sends and receives through the broker's connection."""

    def __init__(self, run: Callable[..., Awaitable[Any]]) -> None:
        self._run = run

    async def send(self, to: str, message: bytes, ttl: float) -> None:
        await self._run("control_send", None, to, message, round(ttl * 1000))

    async def receive(self, name: str) -> list[bytes]:
        return list(await self._run("control_receive", None, name))
