"""RedisResults: the server pushes endings over one subscription per client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from millstream.aio.backoff import ServiceBackoff
from millstream.backends.redis.connect import CONNECT_TIMEOUT, Connector, ask, read
from millstream.backends.redis.keys import address_of_waiters
from millstream.backends.redis.link import CALL_TIMEOUT
from millstream.broker import ResultStore
from millstream.errors import BrokerError, BrokerUnavailable
from millstream.model.address import Address
from millstream.reporting import logs

log = logs.logger("millstream.redis")

RECONNECT_SECONDS = 0.5
"""Seconds between attempts to subscribe after the connection was lost."""

REFUSED_SECONDS = 30.0
"""Seconds between attempts to subscribe after the server refused it, since a user's rights rarely change."""

QUIET_SECONDS = 5.0
"""Seconds without a message after which the connection is checked with a PING. It is lost if no reply comes in CALL_TIMEOUT."""

LOOK_SECONDS, LONGEST_LOOK_SECONDS = 1.0, 30.0
"""A waiting call also reads the ending itself: first after LOOK_SECONDS, then after twice as long each time, up to
LONGEST_LOOK_SECONDS. This is needed because a worker whose user may not PUBLISH sends no notification."""

POLL_SECONDS, LONGEST_POLL_SECONDS = 0.02, 1.0
"""The same intervals while there is no subscription."""

_WAITING = 2

Key = tuple[str, str]
"""A queue and a job id."""


class RedisResults(ResultStore):
    """Registers waiting calls in the queue and receives endings on its own channel. Polls while it cannot subscribe."""

    def __init__(self, connector: Connector, run: Callable[..., Awaitable[Any]], channel: str) -> None:
        self._connector = connector
        self._run = run
        self._channel = channel
        self._waiting: dict[Key, set[asyncio.Future[bytes]]] = {}
        self._subscriber: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        """Set when the first attempt to subscribe has succeeded or failed."""
        self._subscribed = False
        self._closed = False
        self._leaving: set[asyncio.Task[None]] = set()

    async def get(self, queue: Address, job_id: str) -> bytes | None:
        _, ending = await self._run("status", queue, "", job_id)
        return ending or None

    async def wait(self, queue: Address, job_id: str, timeout: float | None) -> bytes | None:
        async with asyncio.timeout(timeout):
            return await self._wait((queue, job_id))

    async def close(self) -> None:
        self._closed = True
        self._tried.set()
        if self._subscriber is not None:
            self._subscriber.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._subscriber
            self._subscriber = None
        for key in self._waiting:
            self._fail(key, self._why_closed())

    def _why_closed(self) -> BrokerUnavailable:
        where = self._connector.where
        return BrokerUnavailable(f"the connection to {where} was closed while this call waited for a result: its app closed")

    # -- waiting -----------------------------------------------------------------------------------------------------------

    async def _wait(self, key: Key) -> bytes | None:
        if not self._closed and (self._subscriber is None or self._subscriber.done()):
            self._tried.clear()
            self._subscriber = asyncio.create_task(self._subscribe(), name="millstream-results")
        await self._tried.wait()
        if self._closed:
            raise self._why_closed()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        futures = self._waiting.setdefault(key, set())
        futures.add(future)
        try:
            if self._subscribed:
                ending = await self._listen(key)
                if ending is not None and not future.done():
                    future.set_result(ending)
            else:
                await self._listen_again(key)
            for pause in self._pauses():
                await asyncio.wait((future,), timeout=pause)
                if future.done():
                    break
                await self._listen_again(key)
            return await future or None
        finally:
            futures.discard(future)
            if not futures:
                self._waiting.pop(key, None)
                if not future.done() or future.cancelled():
                    task = asyncio.create_task(self._unlisten(key))
                    self._leaving.add(task)
                    task.add_done_callback(self._leaving.discard)

    def _pauses(self) -> Iterator[float]:
        """Yield the seconds to wait before each further read."""
        look, poll = LOOK_SECONDS, POLL_SECONDS
        while True:
            yield look if self._subscribed else poll
            if self._subscribed:
                look = min(2 * look, LONGEST_LOOK_SECONDS)
            else:
                poll = min(2 * poll, LONGEST_POLL_SECONDS)

    async def _listen(self, key: Key) -> bytes | None:
        """Return the job's ending, or empty bytes if none was stored. ``None`` means that the job has not ended, and this
        client is registered for its ending."""
        state, *ending = await self._run("listen", *key, self._channel)
        if state == _WAITING:
            return None
        return bytes(ending[0]) if ending else b""

    async def _unlisten(self, key: Key) -> None:
        if key in self._waiting:
            return
        with contextlib.suppress(BrokerError):
            await self._run("unlisten", *key, self._channel)
        # A call may have begun to wait during this request. If it registered before the removal, it must register again.
        await self._listen_again(key)

    async def _listen_again(self, key: Key) -> None:
        """Read the ending of a job, or register for it again. Retry until the server answers or no call waits for it."""
        backoff = ServiceBackoff()
        while any(not future.done() for future in self._waiting.get(key, ())):
            try:
                ending = await self._listen(key)
            except BrokerUnavailable:
                await backoff.wait()
            except BrokerError as error:
                self._fail(key, error)
                return
            else:
                if ending is not None:
                    self._resolve(key, ending)
                return

    # -- the subscription --------------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        """Keep one subscription alive. After every reconnect, read all endings that calls wait for."""
        while True:
            connection: AbstractConnection | None = None
            pause = RECONNECT_SECONDS
            try:
                connection = await self._connector.connect()
                moves = self._connector.moves
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await ask(connection, "SUBSCRIBE", self._channel)
                self._subscribed = True
                self._tried.set()
                listening = asyncio.create_task(self._listen_to_all_again(list(self._waiting)))
                try:
                    while self._connector.moves == moves:  # Otherwise another server is the primary and sends the endings.
                        kind, *_, data = await _next(connection)
                        if kind == b"message":
                            self._hear(data)
                finally:
                    listening.cancel()
            except (BrokerError, RedisError, OSError, TimeoutError) as error:
                if not self._subscribed:
                    pause = self._not_subscribed(error)
                log.debug("result subscription lost: %r", error)
            finally:
                self._subscribed = False
                self._tried.set()
                if connection is not None:
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(pause)

    def _not_subscribed(self, error: Exception) -> float:
        """Return the seconds until the next attempt. Callers report an unreachable server; other errors are logged here."""
        error = error if isinstance(error, BrokerError) else self._connector.translate(error)
        if isinstance(error, BrokerUnavailable):
            return RECONNECT_SECONDS
        self._connector.warn(
            f"results cannot be pushed to this process, so it polls for them, and gets them up to {LONGEST_POLL_SECONDS:g} s "
            f"late: {error} Grant the user the right to SUBSCRIBE to {self._channel.rpartition(':')[0]}:*"
        )
        return REFUSED_SECONDS

    async def _listen_to_all_again(self, keys: list[Key]) -> None:
        for key in keys:
            await self._listen_again(key)

    def _hear(self, data: bytes) -> None:
        try:
            waiters, job_id, ending = data.split(b"\n", 2)
            key = address_of_waiters(waiters.decode()), job_id.decode()
        except ValueError:  # Another program published this.
            log.debug("ignored a message of %d bytes on the channel of results, because it is not an ending", len(data))
            return
        self._resolve(key, ending)

    def _resolve(self, key: Key, ending: bytes) -> None:
        for future in self._waiting.get(key, ()):
            if not future.done():
                future.set_result(ending)

    def _fail(self, key: Key, error: BrokerError) -> None:
        for future in self._waiting.get(key, ()):
            if not future.done():
                future.set_exception(error)
                # Mark the exception as retrieved: if the waiting call fails first for another reason, asyncio logs no warning.
                future.exception()


async def _next(connection: AbstractConnection) -> Any:
    """Return the next push message, or the reply to a PING after QUIET_SECONDS. Raises TimeoutError if the connection is
    dead."""
    try:
        async with asyncio.timeout(QUIET_SECONDS):
            return await read(connection)
    except TimeoutError:
        async with asyncio.timeout(CALL_TIMEOUT):
            try:
                return await ask(connection, "PING")
            except ResponseError as error:  # The server is there, but refuses PING because it cannot write to its disk.
                return b"refused", str(error).encode()
