"""An app's clients: one per process and event loop, created at first use and closed with the loop."""

from __future__ import annotations

import asyncio
import os
import warnings
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from millstream.client.client import Backend, Client
from millstream.client.opening import PrefixDeclaration, TopicDeclaration
from millstream.model.address import Address
from millstream.model.settings import QueueSettings
from millstream.reporting.observers import Observers

ByLoop = dict[asyncio.AbstractEventLoop, Client]


class Clients:
    """Holds no socket, thread or loop until ``here`` is used. A forked child starts with new clients.

    It needs no explicit close: the clients are closed by their loops. A ResourceWarning is issued only if the app was entered
    and never left.
    """

    def __init__(
        self,
        choose_backend: Callable[[], Backend],
        queues: Mapping[str, QueueSettings],
        topics: Mapping[str, TopicDeclaration],
        prefixes: Mapping[Address, PrefixDeclaration],
        observers: Observers,
    ) -> None:
        self._choose_backend = choose_backend
        self._topics = topics
        self._prefixes = prefixes
        self._observers = observers
        self._backend: Backend | None = None
        self._queues = queues
        self._inherited: list[object] = []
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._by_loop: ByLoop = {}
        # Keeps the clients alive until they are closed. Otherwise the garbage collector would drop their connections first.
        self._abandoned = weakref.finalize(self, _abandon, self._by_loop, self._pid)
        self._abandoned.atexit = False

    @property
    def backend(self) -> Backend:
        """The backend, chosen at first use."""
        if self._backend is None:
            self._backend = self._choose_backend()
        return self._backend

    @property
    def where(self) -> str:
        """Description of the backend for messages."""
        return self.backend.where

    def here(self) -> Client:
        """Return the client of the running loop."""
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None or self._pid != os.getpid():
            client = self._admit(loop)
        return client

    def drop(self, client: Client) -> None:
        """Forget a client. The next use on its loop creates a new one."""
        if self._by_loop.get(client.loop) is client:
            del self._by_loop[client.loop]

    @contextmanager
    def override(self, backend: Backend) -> Generator[None]:
        """Use another backend inside the block, with separate clients that are closed at its end."""
        outer = self._backend, self._by_loop
        self._backend, self._by_loop = backend, {}
        try:
            yield
        finally:
            inner = self._by_loop
            self._backend, self._by_loop = outer
            for client in inner.values():
                client.close_soon()

    def _admit(self, loop: asyncio.AbstractEventLoop) -> Client:
        if self._pid != os.getpid():
            # Kept and never closed: the parent process shares these sockets and selectors and still uses them.
            self._inherited.append(self._by_loop)
            self._abandoned.detach()
            self._begin()
        for other, client in list(self._by_loop.items()):
            if other.is_closed():
                self._by_loop.pop(other, None)
                _warn_if_entered(client)
        client = self._by_loop[loop] = Client(self.backend, self._queues, self._topics, self._prefixes, self._observers)
        return client


def _abandon(clients: ByLoop, pid: int) -> None:
    if pid == os.getpid():
        for client in clients.values():
            _warn_if_entered(client)
            client.close_soon()


def _warn_if_entered(client: Client) -> None:
    if client.entered:
        client.never_left()
        warnings.warn("an app was entered (`async with app`) and never left", ResourceWarning, source=client, stacklevel=2)
