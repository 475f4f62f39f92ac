"""The memory backend's mailbox."""

from __future__ import annotations

from collections.abc import Callable

from millstream.broker import Mailbox
from millstream.memory.state import Moment, State


class MemoryMailbox(Mailbox):
    """Boxes of this process alone."""

    def __init__(self, state: State, now: Callable[[], Moment]) -> None:
        self._state = state
        self._now = now

    async def put(self, box: str, mail: bytes, ttl: float) -> None:
        with self._state.lock:
            now = self._now().wall
            self._state.boxes.put(box, [*(self._state.boxes.get(box, now) or ()), mail], now + ttl, now)

    async def take(self, box: str) -> list[bytes]:
        with self._state.lock:
            found = self._state.boxes.get(box, self._now().wall) or []
            self._state.boxes.drop(box)
            return found
