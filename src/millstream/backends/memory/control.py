"""The control channel of the memory backend."""

from __future__ import annotations

from collections.abc import Callable

from millstream.backends.memory.state import Moment, State
from millstream.broker import ControlChannel


class MemoryControlChannel(ControlChannel):
    """Messages within this process."""

    def __init__(self, state: State, now: Callable[[], Moment]) -> None:
        self._state = state
        self._now = now

    async def send(self, to: str, message: bytes, ttl: float) -> None:
        with self._state.lock:
            now = self._now().wall
            self._state.control_messages.put(to, [*(self._state.control_messages.get(to, now) or ()), message], now + ttl, now)

    async def receive(self, name: str) -> list[bytes]:
        with self._state.lock:
            found = self._state.control_messages.get(name, self._now().wall) or []
            self._state.control_messages.drop(name)
            return found
