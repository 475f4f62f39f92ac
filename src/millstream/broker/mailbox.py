"""Mail between processes that know each other by name only: a command and a supervisor."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Mailbox(ABC):
    """Boxes by name, each made by what is first put into it, and gone when it is taken. What nobody takes expires."""

    @abstractmethod
    async def put(self, box: str, mail: bytes, ttl: float) -> None:
        """Put mail behind what is in a box; all of that is kept for ``ttl`` seconds from now."""

    @abstractmethod
    async def take(self, box: str) -> list[bytes]:
        """Take all out, in the order in which it was put. Each is taken once."""
