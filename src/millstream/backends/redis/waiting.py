"""Links on which consumers wait for messages. Beyond a few, they wait on one connection: one BLPOP over their ``wake`` keys."""

from __future__ import annotations

import asyncio
import contextlib

from millstream.aio.backoff import pauses
from millstream.backends.redis.link import Link
from millstream.backends.redis.topology import Node
from millstream.errors import BrokerError, BrokerUnavailable

OWN_LINKS = 4
"""Number of consumers per node that have a link of their own, on which they wait and claim in one round trip. Further consumers
share one link to wait, and claim over the commands' link. So a worker of many queues needs few connections."""

LONGEST_SECONDS = 10.0
"""Maximum seconds of one BLPOP. Callers have their own timeouts."""

AGAIN_SECONDS = 0.005
"""Seconds between two attempts to interrupt a call."""


class WaitingLink:
    """A link on which one consumer, or one follower at a time, waits on the server."""

    def __init__(self, node: Node, *, shared: bool = False) -> None:
        self.node = node
        self.shared = shared
        """Several consumers share one link to wait, and this one claims over the link of all commands."""
        self.link = node.commands if shared else Link(node.connector)

    async def close(self) -> None:
        """Close the link, unless others use it."""
        if not self.shared:
            await self.link.close()


class SharedWait:
    """The idle consumers of one node that share one blocked connection.

    The server pushes a token to the ``wake`` key of a queue when there is something to claim. BLPOP takes the first token of
    any key. When another consumer begins to wait, the call is interrupted and sent again with one more key.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._link = Link(node.connector)
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        """By key: the consumers that wait for its token."""
        self._asked: set[str] = set()
        """The keys of the call in flight."""
        self._running: asyncio.Task[None] | None = None
        self._interrupting: asyncio.Task[None] | None = None
        self._closed = False

    async def wait(self, key: str, seconds: float) -> None:
        """Wait until there may be something to claim, or until the time is over. ``release`` ends the wait, too.

        Raises BrokerUnavailable if the server cannot be reached.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(future)
        try:
            self._ask()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await future
        finally:
            waiting = self._waiting.get(key, set())
            waiting.discard(future)
            if not waiting:
                self._waiting.pop(key, None)

    def release(self, key: str) -> None:
        """End the waits for a key."""
        for future in self._waiting.get(key, ()):
            if not future.done():
                future.set_result(None)

    async def close(self) -> None:
        """Close the connection. Waiting consumers get BrokerUnavailable."""
        self._closed = True
        await self._link.close()
        for task in (self._running, self._interrupting):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))

    def _ask(self) -> None:
        """Make sure that a call for all keys is in flight soon."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        elif not self._is_complete and (self._interrupting is None or self._interrupting.done()):
            self._interrupting = asyncio.create_task(self._interrupt())

    @property
    def _is_complete(self) -> bool:
        return self._asked.issuperset(self._waiting)

    async def _interrupt(self) -> None:
        """End the call in flight, so that the next one has all keys. Repeat it, because it may reach the server before the
        call does. Without the right to do this, new consumers wait for the end of the call."""
        with contextlib.suppress(BrokerError):
            while not self._is_complete and not self._closed:
                if self._link.client_id:
                    await self._node.commands.call("CLIENT", "UNBLOCK", self._link.client_id)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _run(self) -> None:
        tries = pauses()
        while self._waiting and not self._closed:
            try:
                await self._link.ready()
                await asyncio.sleep(0)  # consumers that begin to wait together share the call
                self._asked = set(self._waiting)
                if not self._asked:
                    break
                (answer,) = await self._link.call_together(
                    (("BLPOP", *self._asked, f"{LONGEST_SECONDS:.3f}"),), block=LONGEST_SECONDS
                )
            except BrokerError as error:
                self._asked = set()
                self._fail(error)
                await asyncio.sleep(next(tries))
                continue
            tries = pauses()
            self._asked = set()
            if answer is not None:
                await self._wake(answer[0].decode())

    async def _wake(self, key: str) -> None:
        """Wake a consumer. If none waits here any more, return the token, because another process may wait for it."""
        for future in self._waiting.get(key, ()):
            if not future.done():
                future.set_result(None)
                return
        with contextlib.suppress(BrokerError):
            await self._node.commands.call("LPUSH", key, "")

    def _fail(self, error: BrokerError) -> None:
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(BrokerUnavailable(str(error)))
                    future.exception()
