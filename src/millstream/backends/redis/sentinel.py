"""Sentinel: ask the sentinels for the primary, and leave a demoted primary as soon as they announce another one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from millstream.aio.backoff import ServiceBackoff
from millstream.backends.redis.connect import Connector, abort, ask, read
from millstream.backends.redis.topology import OneServer, Version
from millstream.errors import BrokerError, BrokerRefused, BrokerUnavailable
from millstream.reporting import logs
from millstream.url import Host, Url

log = logs.logger("millstream.redis")

ANSWER_SECONDS = 1.0
"""Seconds within which a sentinel must accept a connection and answer. The next one is asked after that."""

QUIET_SECONDS = 2.0
"""Seconds without an announcement after which the announcing sentinel is checked with a PING."""

LISTEN_SECONDS = 30.0
"""Seconds for which one sentinel is listened to. After that the next one is asked, because a sentinel that is cut off from the
others announces nothing."""

SWITCHED = "+switch-master"


class Sentinels:
    """The sentinels of one service. They are asked in turn, beginning with the one that answered last."""

    def __init__(self, url: Url, where: str) -> None:
        self._url = url
        self._where = where
        self._hosts = list(url.hosts)
        self._version = Version()
        self.replicas = 0
        """Number of replicas that the sentinels know, reachable or not."""

    @property
    def service(self) -> str:
        """The name under which the sentinels know the primary."""
        return self._url.service

    async def primary(self) -> Host:
        """Return the address of the primary.

        Raises:
            BrokerUnavailable: No sentinel answers, or those that answer do not know the primary yet.
            BrokerRefused: The sentinels do not know the service, or refuse the user.
        """
        failed: list[str] = []
        unknown: BrokerRefused | None = None
        for host in list(self._hosts):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    connection = await self.connect(host)
                    try:
                        return await self.ask_primary(connection, host)
                    finally:
                        abort(connection)
            except BrokerRefused as error:
                unknown = error
            except (BrokerError, RedisError, OSError, TimeoutError) as error:
                failed.append(f"{host}: {error or type(error).__name__}")
        if unknown is not None and not failed:
            raise unknown
        if unknown is not None:
            failed.append(str(unknown))
        raise BrokerUnavailable(f"{self._where}: no sentinel answers ({'; '.join(failed)})")

    async def connect(self, host: Host) -> AbstractConnection:
        """Return a connection to one sentinel."""
        return await Connector(self._url.of_sentinel(host), where=f"{self._where}: the sentinel {host}").connect()

    async def ask_primary(self, connection: AbstractConnection, host: Host) -> Host:
        """Ask one sentinel for the primary, and for further sentinels that can be asked later."""
        services = {state["name"]: state for state in map(_fields, await ask(connection, "SENTINEL", "MASTERS"))}
        state = services.get(self.service)
        if state is None:
            raise BrokerRefused(
                f"{self._where}: the sentinel {host} does not know the service {self.service!r}; "
                f"it knows {', '.join(map(repr, sorted(services))) or 'none'}"
            )
        if not self._version.accepts(int(state.get("config-epoch", 0))):
            raise BrokerUnavailable(f"{self._where}: the sentinel {host} does not know of the last failover yet")
        self.replicas = int(state.get("num-slaves", 0))
        known = [_fields(each) for each in await ask(connection, "SENTINEL", "SENTINELS", self.service)]
        further = [Host(each["ip"], int(each["port"])) for each in known if each.get("port", "").isdigit()]
        self._hosts = list(dict.fromkeys([host, *self._url.hosts, *further]))
        # Asked last, so that the address is never older than the version.
        found = await ask(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        if found is None:
            raise BrokerUnavailable(f"{self._where}: the sentinel {host} forgets the service {self.service!r}")
        return Host(found[0].decode(), int(found[1]))

    @property
    def hosts(self) -> list[Host]:
        """All known sentinels, beginning with the one that answered last."""
        return list(self._hosts)


class BehindSentinel(OneServer):
    """The server that the sentinels name as the primary."""

    def __init__(self, url: Url, where: str) -> None:
        self._url = url
        self._where = where
        self._sentinels = Sentinels(url, where)
        self._primary: Host | None = None
        self._watching: asyncio.Task[None] | None = None
        super().__init__(Connector(self._locate, where=where, only_primary=True))

    async def open(self) -> None:
        await super().open()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="millstream-sentinel")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None
        await super().close()

    async def check_replicas(self, replicas: int) -> None:
        known = self._sentinels.replicas
        if known < replicas:
            raise BrokerUnavailable(
                f"replicas={replicas}, but the sentinels of {self._where} know {known} replicas: add replicas, or lower it"
            )

    async def _locate(self) -> str:
        primary = await self._sentinels.primary()
        self._note(primary)
        return self._url.of_server(primary)

    def _note(self, primary: Host) -> None:
        """Leave the former primary if another server has its role now."""
        before, self._primary = self._primary, primary
        if before not in (None, primary):
            log.warning("%s: the primary changed from %s to %s", self._where, before, primary)
            self._node.connector.leave()

    async def _watch(self) -> None:
        """Listen to one sentinel at a time for the announcement of another primary."""
        backoff = ServiceBackoff()
        while True:
            for host in reversed(self._sentinels.hosts):  # the first one was asked last
                connection: AbstractConnection | None = None
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        connection = await self._sentinels.connect(host)
                        self._note(await self._sentinels.ask_primary(connection, host))
                        await ask(connection, "SUBSCRIBE", SWITCHED)
                    self._note(await self._sentinels.primary())  # it may have changed before the subscription
                    backoff = ServiceBackoff()
                    await self._listen(connection)
                except Exception as error:  # the watch must never end: nobody else notices a new primary
                    log.debug("%s: the sentinel %s does not answer: %r", self._where, host, error)
                finally:
                    if connection is not None:
                        abort(connection)
            await backoff.wait()

    async def _listen(self, connection: AbstractConnection) -> None:
        """Heed announcements for LISTEN_SECONDS. Raises an error if the sentinel does not answer any more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LISTEN_SECONDS
        while loop.time() < until:
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    message = await read(connection)
            except TimeoutError:
                async with asyncio.timeout(ANSWER_SECONDS):
                    message = await ask(connection, "PING")
            announced = _announced(message, self._sentinels.service)
            if announced is not None:
                self._note(announced)


def _announced(message: Any, service: str) -> Host | None:
    """Return the new primary if a message announces one: service, old host and port, new host and port."""
    if message[0] != b"message":
        return None
    name, _, _, host, port = message[-1].decode().split(" ")
    return Host(host, int(port)) if name == service else None


def _fields(pairs: list[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
