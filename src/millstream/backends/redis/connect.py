"""Connect to the server, log in, and translate its errors into messages for users."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
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
from millstream.url import Host

log = logs.logger("millstream.redis")

CONNECT_TIMEOUT = 3.0
"""Seconds to connect and log in. Clients retry for 5 s, so there is time for a second attempt."""

KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPALIVE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""TCP keepalive: idle seconds before the first probe (the second name is for macOS), seconds between probes, number of probes.

Probes keep a connection alive in load balancers, and detect a dead connection that is not in use.
"""

DIAGNOSIS_PAUSE = 30.0
"""Seconds for which the diagnosis of a failed login is reused."""

USER_TIMEOUT_MS = 10_000
"""Milliseconds after which the kernel ends a connection if sent data is not acknowledged."""

MINIMUM_VERSION = (7, 0)

_UNWILLING = {
    "OOM": "the server is out of memory (maxmemory is reached): raise maxmemory, free memory, or start workers to empty queues",
    "READONLY": "the server is a read-only replica: connect to the primary",
    "MISCONF": "the server cannot write its data to disk (MISCONF): check its log and its disk",
    "LOADING": "the server is loading its data",
    "MASTERDOWN": "the replica has lost its primary",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the cluster is moving slots",
    "BUSY": "the server is busy running a long script",
    "UNBLOCKED": "the server has become a replica: connect to the primary",
    "NOREPLICAS": "the server has too few replicas to accept writes",
}
_UNWELCOME = ("NOAUTH", "WRONGPASS", "NOPERM", "DENIED")
_DEMOTED = ("READONLY", "MASTERDOWN", "UNBLOCKED", "LOADING", "NOREPLICAS")
"""Errors of a primary that was demoted or isolated: another server is, or soon will be, the primary."""
_REDIRECTS = ("MOVED", "ASK")


Locate = Callable[[], Awaitable[str]]
"""Returns the URL of the server, after starting the server if necessary."""


class ScriptMissing(BrokerError):
    """The server does not have this script, so the script did not run and must be loaded."""


class Redirected(BrokerUnavailable):
    """Another node of the cluster has the keys of this command, so the command did not run."""

    def __init__(self, message: str, slot: int, host: Host, *, once: bool) -> None:
        super().__init__(message)
        self.slot = slot
        self.host = host
        """Where to send the command. An empty name means the host of the node that answered."""
        self.once = once
        """Only this command belongs there, after ASKING: the slot is being moved and is not there yet."""


class Connector:
    """Opens connections to one server. A ``Locate`` is called before each connection, because an embedded server stops when it
    is unused, and a primary may be replaced."""

    def __init__(
        self,
        url: str | Locate,
        *,
        where: str = "",
        only_primary: bool = False,
        troubled: Callable[[], None] = lambda: None,
    ) -> None:
        self.where = where or (url if isinstance(url, str) else "the server")
        self.moves = 0
        """Number of times that connections were dropped because their server was no longer the primary."""
        self.troubled = troubled
        """Called when the server cannot be reached, or answers that another server may be responsible."""
        self._only_primary = only_primary
        self._open: weakref.WeakSet[AbstractConnection] = weakref.WeakSet()
        self._diagnose_at = 0.0
        """Loop time of the next diagnosis of a failed login."""
        self._reason: Exception | None = None
        self._url = url
        self._warned: set[str] = set()

    async def connect(self) -> AbstractConnection:
        """Return a new connection that is logged in. Raises BrokerUnavailable or BrokerRefused."""
        try:
            connection = await self._connect()
        except BrokerUnavailable:
            self.troubled()
            raise
        self._open.add(connection)
        return connection

    def leave(self) -> None:
        """Drop all connections, because another server is the primary now. Calls in flight fail with BrokerUnavailable."""
        self.moves += 1
        for connection in list(self._open):
            with contextlib.suppress(RedisConnectionError):
                transport_of(connection).abort()

    async def _connect(self) -> AbstractConnection:
        url = self._url if isinstance(self._url, str) else await self._url()
        moves = self.moves
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
            if self._only_primary:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await self._check_role(connection)
                if self.moves != moves:
                    raise BrokerUnavailable(f"{self.where}: the primary changed during the login")
        self._reason = None
        _watch_over(connection)
        return connection

    async def _check_role(self, connection: AbstractConnection) -> None:
        """Raise BrokerUnavailable unless the server is a primary. A failover may have changed that since it was located."""
        answer = await ask(connection, "HELLO")
        hello = dict(zip(answer[::2], answer[1::2], strict=True))
        if hello.get(b"role", b"master") != b"master":
            raise BrokerUnavailable(f"{self.where}: the server named as the primary is a replica: a failover is in progress")

    async def _diagnose(self, url: str) -> Exception | None:
        """Return why a login fails. Checks at most every DIAGNOSIS_PAUSE seconds, since all attempts of an outage fail
        alike."""
        now = asyncio.get_running_loop().time()
        if now >= self._diagnose_at:
            self._diagnose_at = now + DIAGNOSIS_PAUSE
            self._reason = await diagnose(url, self.where)
        return self._reason

    async def connect_and_learn(self) -> tuple[AbstractConnection, dict[str, str], int]:
        """Return a new connection, the server section of INFO, and the client id. Without the rights to read them, the section
        is reduced or empty and the id is 0."""
        connection = await self.connect()
        with self.translated(connection):
            async with asyncio.timeout(CONNECT_TIMEOUT):
                server, client_id = await _learn(connection)
            if "run_id" not in server:
                self.warn(
                    f"{self.where}: this user may not run INFO. Millstream cannot check the eviction policy, and workers have "
                    "less time to renew their leases after the server restarts. Grant +info to this user."
                )
            if "redis_version" in server:
                check_version(server, self.where)
        return connection, server, client_id

    def warn(self, text: str) -> None:
        """Log a warning. The same text is logged only once."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    @contextlib.contextmanager
    def translated(self, connection: AbstractConnection) -> Generator[None]:
        """Close a new connection if an error occurs while it is being set up, and translate the error."""
        try:
            yield
        except (RedisError, OSError, TimeoutError) as error:
            abort(connection)
            translated = self.translate(error)
            if type(translated) is BrokerError:  # Any other error at login is permanent, such as a missing database.
                translated = BrokerRefused(str(translated))
            raise translated from error
        except BaseException:
            abort(connection)
            raise

    def translate(self, error: BaseException) -> BrokerError:
        """Translate an error of the client or server into a BrokerError with a message for users."""
        if type(error) is RedisConnectionError and isinstance(error.__cause__, RedisError):
            error = error.__cause__  # On unix sockets, redis-py wraps the server's error at login.
        text = str(error) or type(error).__name__
        if text.startswith("Error UNKNOWN while writing"):
            text = "the server closed the connection"
        code = text.split(" ", 1)[0].rstrip(":")
        if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError) or code in _UNWELCOME:
            return BrokerRefused(
                f"{self.where} refused this user: {text.rstrip('.')}. Check the user and password in the URL, and the ACL."
            )
        if isinstance(error, NoScriptError) or code == "NOSCRIPT":
            return ScriptMissing(f"{self.where}: {text}")
        code = {"OutOfMemoryError": "OOM", "ReadOnlyError": "READONLY", "BusyLoadingError": "LOADING"}.get(
            type(error).__name__, code
        )
        if "max number of clients" in text:
            return BrokerUnavailable(f"{self.where}: the server has too many connections: raise its maxclients. ({text})")
        if code == "MISCONF" and "No space left" in text:
            return BrokerUnavailable(f"{self.where}: the server's disk is full, so it refuses writes: free space. ({text})")
        if code in _REDIRECTS:
            return _redirected(self.where, code, text)
        if code in _UNWILLING:
            return BrokerUnavailable(f"{self.where}: {_UNWILLING[code]}. ({text})")
        if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError | TimeoutError):
            return BrokerUnavailable(f"{self.where} cannot be reached: {text}")
        if isinstance(error, ResponseError) and "unknown command" in text.lower():
            return BrokerRefused(f"{self.where} is not a Redis server of version 7.0 or newer, or a Valkey server: {text}")
        if type(error).__name__ == "InvalidResponse":
            return BrokerRefused(f"{self.where} does not speak the Redis protocol: {text}")
        return BrokerError(f"{self.where}: {type(error).__name__}: {text}")


def is_demoted(error: Exception) -> bool:
    """Return whether an error means that this server is not, or soon will not be, the primary. Its address must be resolved
    again."""
    return str(error).split(" ", 1)[0] in _DEMOTED


def _redirected(where: str, code: str, text: str) -> BrokerError:
    _, slot, target, *_ = [*text.split(" "), "", ""]
    name, _, port = target.rpartition(":")
    if not (slot.isdigit() and port.isdigit()):
        return BrokerError(f"{where}: {text}")
    known = (
        f"{where}: another node of the cluster has this queue ({text}). If the URL begins with redis://, use redis+cluster://"
    )
    return Redirected(known, int(slot), Host(name.strip("[]"), int(port)), once=code == "ASK")


def _is_vague(error: Exception) -> bool:
    """Return whether a server is there but the login failed without a clear reason: the server closed the connection, did not
    answer, or sent something unreadable."""
    if isinstance(error.__context__, ConnectionRefusedError | FileNotFoundError | socket.gaierror):
        return False
    vague = isinstance(error, OSError) or type(error) in (RedisConnectionError, RedisTimeoutError, InvalidResponse)
    return vague and not isinstance(error.__cause__, RedisError)


async def _learn(connection: AbstractConnection) -> tuple[dict[str, str], int]:
    """Return the server section of INFO and the client id of the connection. If the user may not read one of them, HELLO, which
    every user may run, provides the version and the id."""
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
    """Set socket options so that the kernel detects a dead peer, as far as this system supports them."""
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
    """Return the next reply or push message. Raises an error reply."""
    return await connection.read_response(disconnect_on_error=False)  # pyright: ignore[reportUnknownVariableType]


async def ask(connection: AbstractConnection, *command: str) -> Any:
    """Send one command and return its reply, on a connection that nobody else uses."""
    await connection.send_command(*command, check_health=False)
    return await read(connection)


def transport_of(connection: AbstractConnection) -> asyncio.WriteTransport:
    """Return the transport of an open connection."""
    writer: asyncio.StreamWriter | None = connection._writer  # pyright: ignore[reportPrivateUsage]  # redis-py has no other way
    if writer is None:
        raise RedisConnectionError("the connection was closed")
    return writer.transport


def abort(connection: AbstractConnection) -> None:
    """Close a connection without waiting."""
    with contextlib.suppress(RedisConnectionError):
        transport_of(connection).abort()
    connection._close()  # pyright: ignore[reportPrivateUsage]  # redis-py has no other way that does not wait


def parse_info(raw: bytes) -> dict[str, str]:
    """Parse a reply to INFO."""
    lines = raw.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def check_version(server: dict[str, str], where: str) -> None:
    """Raise BrokerRefused unless this is Redis 7.0 or newer, or Valkey."""
    version = server.get("redis_version", "")
    try:
        number = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        number = (0, 0)
    if number < MINIMUM_VERSION:
        raise BrokerRefused(
            f"{where} runs version {version or 'unknown'}; Millstream needs Redis 7.0 or newer, or Valkey. "
            "Upgrade the server, or omit the URL to use the embedded server."
        )


def server_name(server: dict[str, str]) -> str:
    """Return the name and version of the server, for people."""
    if "valkey_version" in server:
        return f"Valkey {server['valkey_version']}"
    return f"Redis {server.get('redis_version', '?')}"
