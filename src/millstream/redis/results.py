"""RedisResults: endings pushed over one subscription per client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from millstream import logs
from millstream.backoff import Backoff
from millstream.broker import ResultStore
from millstream.errors import BrokerError, BrokerUnavailable
from millstream.redis.connect import CONNECT_TIMEOUT, Connector, ask, read
from millstream.redis.keys import address_of_waiters
from millstream.redis.link import CALL_TIMEOUT

log = logs.logger("millstream.redis")

RECONNECT_SECONDS = 0.5
"""Between attempts to subscribe again after the connection was lost."""

QUIET_SECONDS = 5.0
"""After so long without a message the server is asked whether it is there; no answer within CALL_TIMEOUT: it is not."""

_WAITING = 2

Key = tuple[str, str]
"""A queue, and the id of a job."""


class RedisResults(ResultStore):
    """Registers waiters in the queue and hears of endings on a channel of its own."""

    def __init__(self, connector: Connector, run: Callable[..., Awaitable[Any]], channel: str) -> None:
        self._connector = connector
        self._run = run
        self._channel = channel
        self._waiting: dict[Key, set[asyncio.Future[bytes]]] = {}
        self._subscriber: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()

    async def get(self, queue: str, job_id: str) -> bytes | None:
        _, ending = await self._run("status", queue, "", job_id)
        return ending or None

    async def wait(self, queue: str, job_id: str, timeout: float | None) -> bytes | None:
        async with asyncio.timeout(timeout):
            return await self._wait((queue, job_id))

    async def close(self) -> None:
        if self._subscriber is not None:
            self._subscriber.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._subscriber
            self._subscriber = None
        for key in self._waiting:
            self._fail(key, BrokerUnavailable("the broker was closed while waiting for a result"))

    # -- waiting -----------------------------------------------------------------------------------------------------------

    async def _wait(self, key: Key) -> bytes | None:
        if self._subscriber is None or self._subscriber.done():
            self._subscribed.clear()
            self._subscriber = asyncio.create_task(self._subscribe(), name="millstream-results")
        await self._subscribed.wait()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        futures = self._waiting.setdefault(key, set())
        futures.add(future)
        try:
            ending = await self._listen(key)
            if ending is not None and not future.done():
                future.set_result(ending)
            return await future or None
        finally:
            futures.discard(future)
            if not futures:
                self._waiting.pop(key, None)
                if not future.done() or future.cancelled():
                    task = asyncio.create_task(self._unlisten(key))
                    self._leaving.add(task)
                    task.add_done_callback(self._leaving.discard)

    async def _listen(self, key: Key) -> bytes | None:
        """The job's ending, empty if it left none; None: it has not ended, and we are registered to hear of it."""
        state, *ending = await self._run("listen", *key, self._channel)
        if state == _WAITING:
            return None
        return bytes(ending[0]) if ending else b""

    async def _unlisten(self, key: Key) -> None:
        if key in self._waiting:
            return
        with contextlib.suppress(BrokerError):
            await self._run("unlisten", *key, self._channel)
        # Whoever began to wait meanwhile may have been registered before this took the registration away.
        await self._listen_again(key)

    async def _listen_again(self, key: Key) -> None:
        """Look again at what is being waited for, until the server has answered or nobody waits any more."""
        backoff = Backoff()
        while key in self._waiting:
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

    # -- hearing -----------------------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        """Keep one subscription alive; after every reconnect look again at all that is being waited for."""
        while True:
            connection: AbstractConnection | None = None
            try:
                connection = await self._connector.connect()
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await ask(connection, "SUBSCRIBE", self._channel)
                self._subscribed.set()
                listening = asyncio.create_task(self._listen_to_all_again(list(self._waiting)))
                try:
                    while True:
                        kind, *_, data = await _next(connection)
                        if kind == b"message":
                            self._hear(data)
                finally:
                    listening.cancel()
            except (BrokerError, RedisError, OSError, TimeoutError) as error:
                log.debug("result subscription lost: %r", error)
                await asyncio.sleep(RECONNECT_SECONDS)
            finally:
                if connection is not None:
                    await connection.disconnect(nowait=True)

    async def _listen_to_all_again(self, keys: list[Key]) -> None:
        for key in keys:
            await self._listen_again(key)

    def _hear(self, data: bytes) -> None:
        waiters, job_id, ending = data.split(b"\n", 2)
        self._resolve((address_of_waiters(waiters.decode()), job_id.decode()), ending)

    def _resolve(self, key: Key, ending: bytes) -> None:
        for future in self._waiting.get(key, ()):
            if not future.done():
                future.set_result(ending)

    def _fail(self, key: Key, error: BrokerError) -> None:
        for future in self._waiting.get(key, ()):
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits re-raises it; one whose own call fails first leaves no warning behind


async def _next(connection: AbstractConnection) -> Any:
    """The next push. A connection can die without a word: TimeoutError if not even a PING is answered."""
    try:
        async with asyncio.timeout(QUIET_SECONDS):
            return await read(connection)
    except TimeoutError:
        async with asyncio.timeout(CALL_TIMEOUT):
            return await ask(connection, "PING")
