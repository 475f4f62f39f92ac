"""RedisResults: endings pushed over one subscription per client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from millstream.broker import ResultStore
from millstream.errors import BrokerError, BrokerUnavailable
from millstream.redis.connect import CONNECT_TIMEOUT, Connector, ask, read

log = logging.getLogger("millstream.redis")

RECONNECT_SECONDS = 0.5
"""Between attempts to subscribe again after the connection was lost."""

_ENDED, _WAITING = 1, 2


class RedisResults(ResultStore):
    """Registers waiters in the queue and hears of endings on a channel of its own."""

    def __init__(self, connector: Connector, run: Callable[..., Awaitable[Any]], channel: str) -> None:
        self._connector = connector
        self._run = run
        self._channel = channel
        self._waiting: dict[tuple[str, str], set[asyncio.Future[bytes]]] = {}
        self._subscriber: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()
        self._leaving: set[asyncio.Future[None]] = set()

    async def get(self, queue: str, job_id: str) -> bytes | None:
        _, ending = await self._run("status", queue, "", job_id)
        return ending or None

    async def wait(self, queue: str, job_id: str, timeout: float | None) -> bytes | None:
        async with asyncio.timeout(timeout):
            return await self._wait(queue, job_id)

    async def close(self) -> None:
        if self._subscriber is not None:
            self._subscriber.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._subscriber
            self._subscriber = None
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(BrokerUnavailable("the broker was closed while waiting for a result"))

    async def _wait(self, queue: str, job_id: str) -> bytes | None:
        if self._subscriber is None or self._subscriber.done():
            self._subscribed.clear()
            self._subscriber = asyncio.create_task(self._subscribe(), name="millstream-results")
        await self._subscribed.wait()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        futures = self._waiting.setdefault((queue, job_id), set())
        futures.add(future)
        try:
            state, *ending = await self._run("listen", queue, job_id, self._channel)
            if state == _ENDED:
                return bytes(ending[0])
            if state != _WAITING:
                return None
            return await future or None
        finally:
            futures.discard(future)
            if not futures:
                self._waiting.pop((queue, job_id), None)
                if not future.done() or future.cancelled():
                    self._forget(queue, job_id)

    def _forget(self, queue: str, job_id: str) -> None:
        async def unlisten() -> None:
            with contextlib.suppress(BrokerError):
                await self._run("unlisten", queue, job_id, self._channel)

        task = asyncio.ensure_future(unlisten())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _subscribe(self) -> None:
        """Keep one subscription alive; after every reconnect look again at all that is being waited for."""
        while True:
            connection: AbstractConnection | None = None
            try:
                connection = await self._connector.connect()
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await ask(connection, "SUBSCRIBE", self._channel)
                self._subscribed.set()
                listening = asyncio.create_task(self._listen_again())
                try:
                    while True:
                        kind, _, data = await read(connection)
                        if kind == b"message":
                            self._hear(data)
                finally:
                    listening.cancel()
            except (BrokerError, RedisError, OSError, TimeoutError) as error:
                log.debug("result subscription lost: %s", error)
                await asyncio.sleep(RECONNECT_SECONDS)
            finally:
                if connection is not None:
                    await connection.disconnect(nowait=True)

    async def _listen_again(self) -> None:
        for queue, job_id in list(self._waiting):
            with contextlib.suppress(BrokerError):
                state, *ending = await self._run("listen", queue, job_id, self._channel)
                if state != _WAITING:
                    self._resolve(queue, job_id, bytes(ending[0]) if ending else b"")

    def _hear(self, data: bytes) -> None:
        key, job_id, ending = data.split(b"\n", 2)
        # The key of the queue's waiters names the queue: {namespace:q:queue}:waiters.
        queue = key.decode().rpartition("}")[0].split(":q:", 1)[1]
        self._resolve(queue, job_id.decode(), ending)

    def _resolve(self, queue: str, job_id: str, ending: bytes) -> None:
        for future in self._waiting.get((queue, job_id), ()):
            if not future.done():
                future.set_result(ending)
