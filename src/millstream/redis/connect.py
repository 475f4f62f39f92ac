"""Links to the server: one connection each, many calls in flight, answers in order. Nothing is ever sent twice here."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, cast

import hiredis
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.errors import BrokerError, BrokerRefused, BrokerUnavailable

_pack = cast(Callable[[tuple[Any, ...]], bytes], hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]

CALL_TIMEOUT = 5.0
"""Seconds an answer may take before the connection is given up for dead (blocking calls: beyond their block)."""

CONNECT_TIMEOUT = 5.0
"""Seconds to connect and log in."""

MINIMUM_VERSION = (7, 0)

_UNWILLING = {
    "OOM": "the server is out of memory (maxmemory is reached): free memory, raise maxmemory, or let workers drain it",
    "READONLY": "the server is a read-only replica: connect to the primary",
    "MISCONF": "the server cannot write its data to disk (MISCONF): look at its log and the disk",
    "LOADING": "the server is loading its data",
    "MASTERDOWN": "the replica has lost its primary",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the cluster is moving slots",
    "BUSY": "the server is busy with a long script",
    "UNBLOCKED": "the server has become a replica: connect to the primary",
    "NOREPLICAS": "the server has too few replicas to accept writes",
}
_UNWELCOME = ("NOAUTH", "WRONGPASS", "NOPERM", "DENIED")


Locate = Callable[[], Awaitable[str]]
"""Finds the server, starting it if need be; its URL."""


class ScriptMissing(BrokerError):
    """The server does not have this script (any more): it did not run, and must be loaded."""


class Connector:
    """Makes connections to one server. Where it is may be asked anew before each: the embedded one stops when unused."""

    def __init__(self, url: str | Locate, *, safe_url: str = "") -> None:
        self.where = safe_url or (url if isinstance(url, str) else "the server")
        self._url = url

    async def connect(self) -> AbstractConnection:
        """A fresh, logged-in connection, or BrokerUnavailable / BrokerRefused."""
        url = self._url if isinstance(self._url, str) else await self._url()
        connection = _make_connection(url)
        with self.translated(connection):
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await connection.connect()
        return connection

    @contextlib.contextmanager
    def translated(self, connection: AbstractConnection) -> Generator[None]:
        """What fails on a connection that is being made ends it, and is said in our words."""
        try:
            yield
        except (RedisError, OSError, TimeoutError) as error:
            _abort(connection)
            raise self.translate(error) from error
        except BaseException:
            _abort(connection)
            raise

    def translate(self, error: BaseException) -> BrokerError:
        """What a client or server error means to a user."""
        if type(error) is RedisConnectionError and isinstance(error.__cause__, RedisError):
            error = error.__cause__  # on unix sockets redis-py wraps what the server said at login
        text = str(error) or type(error).__name__
        code = text.split(" ", 1)[0].rstrip(":")
        if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError) or code in _UNWELCOME:
            return BrokerRefused(f"{self.where} refused us: {text}. Check the user, password and ACL in the URL.")
        if isinstance(error, NoScriptError):
            return ScriptMissing(f"{self.where}: {text}")
        code = {"OutOfMemoryError": "OOM", "ReadOnlyError": "READONLY", "BusyLoadingError": "LOADING"}.get(
            type(error).__name__, code
        )
        if code in _UNWILLING:
            return BrokerUnavailable(f"{self.where}: {_UNWILLING[code]}. ({text})")
        if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError | TimeoutError):
            return BrokerUnavailable(f"{self.where} cannot be reached: {text}")
        if isinstance(error, ResponseError) and "unknown command" in text.lower():
            return BrokerRefused(f"{self.where} is not a Redis or Valkey of version 7.0 or newer: {text}")
        if type(error).__name__ == "InvalidResponse":
            return BrokerRefused(f"{self.where} does not speak the Redis protocol: {text}")
        return BrokerError(f"{self.where}: {type(error).__name__}: {text}")


def _make_connection(url: str) -> AbstractConnection:
    over_tcp = {"socket_keepalive": True} if url.startswith("redis") else {}
    pool = ConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
        url,
        protocol=2,
        decode_responses=False,
        socket_timeout=None,
        socket_connect_timeout=CONNECT_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
        **over_tcp,
    )
    connection: AbstractConnection = pool.make_connection()
    return connection


class Link:
    """One connection, used by many at once. A broken one fails every call in flight and is replaced by the next call.

    A cancelled caller does no harm: its answer is read and dropped.
    """

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._connection: AbstractConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._connecting = asyncio.Lock()
        self._closed = False
        self.server: dict[str, str] = {}
        """The server section of INFO, read on every connect: its run id tells one life of a server from the next."""
        self.client_id = 0

    @property
    def run_id(self) -> str:
        """Which life of the server this link talks to."""
        return self.server.get("run_id", "")

    async def ready(self) -> None:
        """Connect if need be."""
        if self._connection is None:
            await self._connect()

    async def call(self, *command: Any, block: float = 0.0) -> Any:
        """Send one command and wait for its answer, at most CALL_TIMEOUT beyond ``block`` seconds."""
        return (await self.call_together((command,), block=block))[0]

    async def call_together(self, commands: Sequence[tuple[Any, ...]], *, block: float = 0.0) -> list[Any]:
        """Send several commands in one write; their answers, in order. Raises the first error among them."""
        connection = self._connection or await self._connect()
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in commands]
        # Hot: redis-py's async connection packs in Python; hiredis does it in C, measured at a fifth of the drain's time.
        packed = b"".join([_pack(command) for command in commands])
        self._waiting.extend(futures)
        try:
            async with asyncio.timeout(block + CALL_TIMEOUT):
                # Not through redis-py: there a caller that is cancelled while it waits for the socket takes the connection, and
                # everyone else's calls, with it. What is in flight is bounded by the callers, who wait for their answers.
                _writer(connection).write(packed)
                return [await future for future in futures]
        except TimeoutError:
            silent = BrokerUnavailable(f"{self._connector.where} did not answer within {block + CALL_TIMEOUT:g} s")
            self._drop(connection, silent)
            raise silent from None
        except (RedisError, OSError) as raw:
            error = self._connector.translate(raw)
            if not isinstance(raw, ResponseError):
                self._drop(connection, error)
            raise error from raw

    async def close(self) -> None:
        """Close the connection; calls in flight fail."""
        self._closed = True
        if self._connection is not None:
            reader = self._reader
            self._drop(self._connection, BrokerUnavailable("the connection was closed"))
            if reader is not None:
                with contextlib.suppress(asyncio.CancelledError):
                    await reader

    async def _connect(self) -> AbstractConnection:
        async with self._connecting:
            if self._connection is not None:
                return self._connection
            if self._closed:
                raise BrokerUnavailable("the broker is closed")
            connection = await self._connector.connect()
            with self._connector.translated(connection):
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    self.server = _parse_info(await ask(connection, "INFO", "server"))
                    self.client_id = await ask(connection, "CLIENT", "ID")
                check_version(self.server, self._connector.where)
            self._connection = connection
            self._reader = asyncio.create_task(self._read(connection), name="millstream-link")
            return connection

    async def _read(self, connection: AbstractConnection) -> None:
        waiting = self._waiting
        while True:
            try:
                answer = await read(connection)
            except ResponseError as error:
                future = waiting.popleft()
                if not future.done():
                    future.set_exception(error)
                continue
            except (RedisError, OSError) as error:
                self._drop(connection, self._connector.translate(error))
                return
            future = waiting.popleft()
            if not future.done():
                future.set_result(answer)

    def _drop(self, connection: AbstractConnection, error: BrokerError) -> None:
        if self._connection is not connection:
            return
        self._connection = None
        reader, self._reader = self._reader, None
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits re-raises it; one that was cancelled leaves no warning behind
        _abort(connection)


async def read(connection: AbstractConnection) -> Any:
    """The next answer or push; raises what the server answered if that is an error."""
    return await connection.read_response(disconnect_on_error=False)  # pyright: ignore[reportUnknownVariableType]


async def ask(connection: AbstractConnection, *command: str) -> Any:
    """One command and its answer, on a connection nobody else uses."""
    await connection.send_command(*command, check_health=False)
    return await read(connection)


def _writer(connection: AbstractConnection) -> asyncio.StreamWriter:
    writer: asyncio.StreamWriter | None = connection._writer
    if writer is None:
        raise RedisConnectionError("the connection was closed")
    return writer


def _abort(connection: AbstractConnection) -> None:
    with contextlib.suppress(RedisConnectionError):
        _writer(connection).transport.abort()
    connection._close()


def _parse_info(raw: bytes) -> dict[str, str]:
    lines = raw.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def check_version(server: dict[str, str], where: str) -> None:
    """BrokerRefused unless this is a Redis 7.0+ or a Valkey."""
    version = server.get("redis_version", "")
    try:
        number = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        number = (0, 0)
    if number < MINIMUM_VERSION:
        raise BrokerRefused(
            f"{where} runs version {version or 'unknown'}; Millstream needs Redis 7.0 or newer, or Valkey. "
            "Upgrade the server, or leave the URL out to use the embedded one."
        )


def server_name(server: dict[str, str]) -> str:
    """Name and version, for people."""
    if "valkey_version" in server:
        return f"Valkey {server['valkey_version']}"
    return f"Redis {server.get('redis_version', '?')}"
