"""Finding the server and logging in; what its errors mean to a user."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    InvalidResponse,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.backends.redis.diagnosis import diagnose
from millstream.errors import BrokerError, BrokerRefused, BrokerUnavailable
from millstream.reporting import logs

log = logs.logger("millstream.redis")

CONNECT_TIMEOUT = 3.0
"""Seconds to connect and log in. Below the 5 s for which clients retry, so that a second attempt fits."""

KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPALIVE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""Seconds without traffic before the kernel probes a connection (the second name is macOS's), between probes, and how many.

They keep a connection known to load balancers, and end one that is dead while nobody uses it.
"""

DIAGNOSIS_PAUSE = 30.0
"""Seconds for which the reason of a failed login holds before it is asked for again."""

USER_TIMEOUT_MS = 10_000
"""After this long without an acknowledgement of what was sent the kernel ends a connection."""

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
_MOVED = ("READONLY", "MASTERDOWN", "UNBLOCKED", "LOADING", "NOREPLICAS")
"""Said by a primary that was demoted or cut off: another server is, or will be, the primary."""


Locate = Callable[[], Awaitable[str]]
"""Finds the server, starting it if need be; its URL."""


class ScriptMissing(BrokerError):
    """The server does not have this script (any more): it did not run, and must be loaded."""


class Connector:
    """Makes connections to one server. Where it is may be asked anew before each: the embedded one stops when unused."""

    def __init__(self, url: str | Locate, *, where: str = "") -> None:
        self.where = where or (url if isinstance(url, str) else "the server")
        self.moves = 0
        """How often a connection was left because its server was no primary any more."""
        self._diagnose_at = 0.0
        """Loop time from which the reason of a failed login may be asked for."""
        self._reason: Exception | None = None
        self._url = url
        self._warned: set[str] = set()

    async def connect(self) -> AbstractConnection:
        """A fresh, logged-in connection, or BrokerUnavailable / BrokerRefused."""
        url = self._url if isinstance(self._url, str) else await self._url()
        connection = _make_connection(url)
        with self.translated(connection):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await connection.connect()
            except (RedisConnectionError, RedisTimeoutError, InvalidResponse, OSError, TimeoutError) as error:
                abort(connection)
                if _is_vague(error) and (reason := await self._diagnose(url)) is not None:
                    raise reason from error
                raise
        self._reason = None
        _watch_over(connection)
        return connection

    async def _diagnose(self, url: str) -> Exception | None:
        """What stands in the way, asked at most every DIAGNOSIS_PAUSE: during an outage every attempt fails in the same way."""
        now = asyncio.get_running_loop().time()
        if now >= self._diagnose_at:
            self._diagnose_at = now + DIAGNOSIS_PAUSE
            self._reason = await diagnose(url, self.where)
        return self._reason

    async def connect_and_learn(self) -> tuple[AbstractConnection, dict[str, str], int]:
        """A fresh connection, what INFO says of the server, and the connection's id; the latter as far as the user may ask."""
        connection = await self.connect()
        with self.translated(connection):
            async with asyncio.timeout(CONNECT_TIMEOUT):
                server, client_id = await _learn(connection)
            if "run_id" not in server:
                self.warn(
                    f"{self.where}: this user may not run INFO. The eviction policy is not checked, and workers have less "
                    "time to renew their leases after a restart of the server. Grant +info to this user."
                )
            if "redis_version" in server:
                check_version(server, self.where)
        return connection, server, client_id

    def warn(self, text: str) -> None:
        """Log a warning, once."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    @contextlib.contextmanager
    def translated(self, connection: AbstractConnection) -> Generator[None]:
        """What fails on a connection that is being made ends it, and is said in our words."""
        try:
            yield
        except (RedisError, OSError, TimeoutError) as error:
            abort(connection)
            translated = self.translate(error)
            if type(translated) is BrokerError:  # what refuses a login stays, such as a database that does not exist
                translated = BrokerRefused(str(translated))
            raise translated from error
        except BaseException:
            abort(connection)
            raise

    def translate(self, error: BaseException) -> BrokerError:
        """What a client or server error means to a user."""
        if type(error) is RedisConnectionError and isinstance(error.__cause__, RedisError):
            error = error.__cause__  # on unix sockets redis-py wraps what the server said at login
        text = str(error) or type(error).__name__
        if text.startswith("Error UNKNOWN while writing"):
            text = "the server closed the connection"
        code = text.split(" ", 1)[0].rstrip(":")
        if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError) or code in _UNWELCOME:
            return BrokerRefused(f"{self.where} refused us: {text.rstrip('.')}. Check the user, password and ACL in the URL.")
        if isinstance(error, NoScriptError) or code == "NOSCRIPT":
            return ScriptMissing(f"{self.where}: {text}")
        code = {"OutOfMemoryError": "OOM", "ReadOnlyError": "READONLY", "BusyLoadingError": "LOADING"}.get(
            type(error).__name__, code
        )
        if "max number of clients" in text:
            return BrokerUnavailable(f"{self.where}: the server has no connection left for us: raise its maxclients. ({text})")
        if code == "MISCONF" and "No space left" in text:
            return BrokerUnavailable(f"{self.where}: the server's disk is full, so it refuses writes: free space. ({text})")
        if code in _UNWILLING:
            return BrokerUnavailable(f"{self.where}: {_UNWILLING[code]}. ({text})")
        if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError | TimeoutError):
            return BrokerUnavailable(f"{self.where} cannot be reached: {text}")
        if isinstance(error, ResponseError) and "unknown command" in text.lower():
            return BrokerRefused(f"{self.where} is not a Redis or Valkey of version 7.0 or newer: {text}")
        if type(error).__name__ == "InvalidResponse":
            return BrokerRefused(f"{self.where} does not speak the Redis protocol: {text}")
        return BrokerError(f"{self.where}: {type(error).__name__}: {text}")


def has_moved(error: Exception) -> bool:
    """Whether an answer says that this server is not the primary, or soon will not be: its address must be asked for again."""
    return str(error).split(" ", 1)[0] in _MOVED


def _is_vague(error: Exception) -> bool:
    """Whether somebody is there and the login failed without a reason: they hung up, kept silent, or were not understood."""
    if isinstance(error.__context__, ConnectionRefusedError | FileNotFoundError | socket.gaierror):
        return False
    vague = isinstance(error, OSError) or type(error) in (RedisConnectionError, RedisTimeoutError, InvalidResponse)
    return vague and not isinstance(error.__cause__, RedisError)


async def _learn(connection: AbstractConnection) -> tuple[dict[str, str], int]:
    """The server section of INFO, and the connection's id. A user who may ask for neither gets from HELLO, which is open to
    everyone, what that knows: the version and the id."""
    server, client_id = dict[str, str](), 0
    with contextlib.suppress(NoPermissionError):
        server = parse_info(await ask(connection, "INFO", "server"))
    with contextlib.suppress(NoPermissionError):
        client_id = int(await ask(connection, "CLIENT", "ID"))
    if server and client_id:
        return server, client_id
    try:
        answer = await ask(connection, "HELLO")
    except ResponseError:
        return server, client_id
    hello = dict(zip(answer[::2], answer[1::2], strict=True))
    version = hello[b"version"].decode()
    known = {"redis_version": version} | ({"valkey_version": version} if hello[b"server"] == b"valkey" else {})
    return server or known, int(hello[b"id"])


def _watch_over(connection: AbstractConnection) -> None:
    """Have the kernel notice a dead peer, as far as it can on this system."""
    carrier: socket.socket | None = transport_of(connection).get_extra_info("socket")
    if carrier is None or carrier.family not in (socket.AF_INET, socket.AF_INET6):
        return
    options = [(name, value) for name, value in (*KEEPALIVE, ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS)) if hasattr(socket, name)]
    with contextlib.suppress(OSError):
        carrier.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options:
            carrier.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _make_connection(url: str) -> AbstractConnection:
    pool = ConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
        url,
        protocol=2,
        decode_responses=False,
        socket_timeout=None,
        socket_connect_timeout=CONNECT_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
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
    writer: asyncio.StreamWriter | None = connection._writer  # pyright: ignore[reportPrivateUsage]  # redis-py has no other way
    if writer is None:
        raise RedisConnectionError("the connection was closed")
    return writer.transport


def abort(connection: AbstractConnection) -> None:
    """End a connection at once."""
    with contextlib.suppress(RedisConnectionError):
        transport_of(connection).abort()
    connection._close()  # pyright: ignore[reportPrivateUsage]  # redis-py has no other way that does not wait


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
