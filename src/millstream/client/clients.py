"""An app's clients: one per process and event loop, made at first use, gone with their loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from millstream.client.client import Client, Room
from millstream.settings import QueueSettings


class Clients:
    """Holds no socket, thread or loop until ``here`` is used. A forked child begins anew."""

    def __init__(self, choose_room: Callable[[], Room], queues: Mapping[str, QueueSettings]) -> None:
        self._choose_room = choose_room
        self._room: Room | None = None
        self._queues = queues
        self._by_loop: dict[asyncio.AbstractEventLoop, Client] = {}
        self._pid = os.getpid()
        self._inherited: list[object] = []

    @property
    def room(self) -> Room:
        """Where the queues are, chosen at first use."""
        if self._room is None:
            self._room = self._choose_room()
        return self._room

    def here(self) -> Client:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None or self._pid != os.getpid():
            client = self._admit(loop)
        return client

    def drop(self, client: Client) -> None:
        """Let the next use of its loop make another one."""
        if self._by_loop.get(client.loop) is client:
            del self._by_loop[client.loop]

    @contextmanager
    def override(self, room: Room) -> Generator[None]:
        """Everything inside goes to another room, through clients of its own, which are closed at the end."""
        outer = self._room, self._by_loop
        self._room, self._by_loop = room, {}
        try:
            yield
        finally:
            inner = self._by_loop
            self._room, self._by_loop = outer
            for client in inner.values():
                client.close_soon()

    def _admit(self, loop: asyncio.AbstractEventLoop) -> Client:
        if self._pid != os.getpid():
            # Kept, never closed: these sockets and selectors are shared with the parent, who still uses them.
            self._inherited.append(self._by_loop)
            self._by_loop = {}
            self._pid = os.getpid()
        for other in list(self._by_loop):
            if other.is_closed():
                self._by_loop.pop(other, None)
        client = self._by_loop[loop] = Client(self.room, self._queues)
        return client
