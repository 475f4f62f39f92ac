"""Finding the server and logging in; what its errors mean to a user."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import Any

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
            abort(connection)
            raise self.translate(error) from error
        except BaseException:
            abort(connection)
            raise

    def translate(self, error: BaseException) -> BrokerError:
        """What a client or server error means to a user."""
        if type(error) is RedisConnectionError and isinstance(error.__cause__, RedisError):
            error = error.__cause__  # on unix sockets redis-py wraps what the server said at login
        text = str(error) or type(error).__name__
        code = text.split(" ", 1)[0].rstrip(":")
        if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError) or code in _UNWELCOME:
            return BrokerRefused(f"{self.where} refused us: {text.rstrip('.')}. Check the user, password and ACL in the URL.")
        if isinstance(error, NoScriptError) or code == "NOSCRIPT":
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


async def read(connection: AbstractConnection) -> Any:
    """The next answer or push; raises what the server answered if that is an error."""
    return await connection.read_response(disconnect_on_error=False)  # pyright: ignore[reportUnknownVariableType]


async def ask(connection: AbstractConnection, *command: str) -> Any:
    """One command and its answer, on a connection nobody else uses."""
    await connection.send_command(*command, check_health=False)
    return await read(connection)


def transport_of(connection: AbstractConnection) -> asyncio.WriteTransport:
    """What carries a connection that was made."""
    writer: asyncio.StreamWriter | None = connection._writer
    if writer is None:
        raise RedisConnectionError("the connection was closed")
    return writer.transport


def abort(connection: AbstractConnection) -> None:
    """End a connection at once."""
    with contextlib.suppress(RedisConnectionError):
        transport_of(connection).abort()
    connection._close()


def parse_info(raw: bytes) -> dict[str, str]:
    """INFO as a dict."""
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
