"""Wait for messages of many queues on one connection: one BLPOP over their ``wake`` keys."""

from __future__ import annotations

import asyncio
import contextlib

from millstream.aio.backoff import pauses
from millstream.backends.redis.link import Link
from millstream.backends.redis.topology import Node
from millstream.errors import BrokerError, BrokerRefused, BrokerUnavailable

LONGEST_SECONDS = 10.0
"""Maximum seconds of one BLPOP. Callers have their own timeouts."""


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
        self._woken: set[str] = set()
        """Keys whose token was taken while no consumer waited for it."""
        self._asked: set[str] = set()
        """The keys of the call in flight."""
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    async def wait(self, key: str, seconds: float) -> None:
        """Wait until there may be something to claim, or until the time is over. ``release`` ends the wait, too.

        Raises BrokerUnavailable if the server cannot be reached.
        """
        if key in self._woken:
            self._woken.discard(key)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(future)
        try:
            await self._ask()
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
        if self._running is not None:
            await asyncio.wait((self._running,))

    async def _ask(self) -> None:
        """Make sure that a call for all keys is in flight."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        elif not self._asked.issuperset(self._waiting) and self._link.client_id:
            with contextlib.suppress(BrokerRefused):  # Without this right, new consumers wait for the end of the call.
                await self._node.commands.call("CLIENT", "UNBLOCK", self._link.client_id)

    async def _run(self) -> None:
        tries = pauses()
        while self._waiting and not self._closed:
            await asyncio.sleep(0)  # consumers that begin to wait together share the call
            self._asked = set(self._waiting)
            try:
                await self._link.ready()
                (answer,) = await self._link.call_together(
                    (("BLPOP", *self._asked, f"{LONGEST_SECONDS:.3f}"),), block=LONGEST_SECONDS
                )
            except BrokerError as error:
                self._fail(error)
                await asyncio.sleep(next(tries))
                continue
            tries = pauses()
            if answer is not None:
                self._wake(answer[0].decode())

    def _wake(self, key: str) -> None:
        for future in self._waiting.get(key, ()):
            if not future.done():
                future.set_result(None)
                return
        self._woken.add(key)

    def _fail(self, error: BrokerError) -> None:
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(BrokerUnavailable(str(error)))
                    future.exception()
