"""Messages between a command and a supervisor, which know each other only by name."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ControlChannel(ABC):
    """A list of messages per name. Each message is received once. Messages that nobody receives expire."""

    @abstractmethod
    async def send(self, to: str, message: bytes, ttl: float) -> None:
        """Append a message to the list of ``to``. The whole list is kept for ``ttl`` seconds from now."""

    @abstractmethod
    async def receive(self, name: str) -> list[bytes]:
        """Take every message sent to ``name``, in the order sent."""
