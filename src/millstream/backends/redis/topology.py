"""Which server keeps which keys: one server, the primary that Sentinel names, or the nodes of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

from millstream.backends.redis.connect import Connector, Locate, Redirected, parse_info
from millstream.backends.redis.link import Link
from millstream.errors import BrokerRefused, BrokerUnavailable
from millstream.url import Host, parse_url

FORGET_SECONDS = 10.0
"""Seconds after which a lower version is accepted, if no server has shown a higher one in that time. Servers that were set up
again begin with low versions."""


class Version:
    """The highest version of what sentinels or nodes know. An answer with a lower version is outdated."""

    def __init__(self) -> None:
        self._highest = 0
        self._outdated_since: float | None = None
        """Loop time of the first outdated answer since the last current one."""

    def accepts(self, version: int) -> bool:
        """Return whether an answer with this version is current."""
        now = asyncio.get_running_loop().time()
        if version < self._highest:
            self._outdated_since = now if self._outdated_since is None else self._outdated_since
            if now - self._outdated_since < FORGET_SECONDS:
                return False
        self._highest, self._outdated_since = version, None
        return True


class Node:
    """One server: how to connect to it, and the link that all short calls to it share."""

    def __init__(self, connector: Connector, host: Host | None = None) -> None:
        self.connector = connector
        self.host = host
        """Where it is, in a cluster."""
        self.commands = Link(connector)

    @property
    def name(self) -> str:
        """Host and port, in a cluster. Empty for a single server."""
        return str(self.host or "")

    @property
    def where(self) -> str:
        """The server, for people."""
        return self.connector.where


class Topology(ABC):
    """Knows the servers. Belongs to one event loop."""

    divided = False
    """Whether one command may only use keys of one slot, even if a node has several."""

    @property
    @abstractmethod
    def subscriber(self) -> Connector:
        """Connects to a server on which messages to any channel can be received."""

    @abstractmethod
    async def open(self) -> None:
        """Find the servers. Raises BrokerUnavailable or BrokerRefused."""

    @abstractmethod
    async def close(self) -> None:
        """Close the links of all nodes."""

    @abstractmethod
    def node(self, slot: int) -> Node:
        """Return the node that keeps the keys of a slot. Raises BrokerUnavailable if there is none now."""

    @abstractmethod
    def nodes(self) -> Sequence[Node]:
        """Return all nodes that keep keys."""

    @abstractmethod
    async def check_replicas(self, replicas: int) -> None:
        """Raise BrokerUnavailable if a primary has fewer replicas than this.

        Replicas that are unreachable now count, if the topology knows them. The error is not permanent, because sentinels and
        nodes learn of a new replica only after some seconds.
        """

    def redirect(self, error: Redirected, node: Node) -> Node:
        """Return where to send a command that this node did not run. Raises the error if that is unknown."""
        raise error


class OneServer(Topology):
    """A single server keeps all keys."""

    def __init__(self, connector: Connector) -> None:
        self._node = Node(connector)

    @property
    def subscriber(self) -> Connector:
        return self._node.connector

    async def open(self) -> None:
        await self._node.commands.ready()
        server = self._node.commands.server
        if "cluster" in (server.get("redis_mode"), server.get("server_mode")):
            raise BrokerRefused(
                f"{self._node.where} is a node of a cluster: use redis+cluster:// or rediss+cluster:// in the URL"
            )

    async def close(self) -> None:
        await self._node.commands.close()

    async def check_replicas(self, replicas: int) -> None:
        with contextlib.suppress(BrokerRefused):  # This user may not ask.
            connected = int(parse_info(await self._node.commands.call("INFO", "replication")).get("connected_slaves", 0))
            if connected < replicas:
                raise BrokerUnavailable(
                    f"replicas={replicas}, but {self._node.where} has {connected} connected replicas: start them, or lower it"
                )

    def node(self, slot: int) -> Node:
        return self._node

    def nodes(self) -> Sequence[Node]:
        return (self._node,)


def make_topology(url: str | Locate, where: str) -> Topology:
    """Return the topology for a URL, without connecting."""
    if not isinstance(url, str):
        return OneServer(Connector(url, where=where))
    parsed = parse_url(url)
    if parsed.is_sentinel:
        from millstream.backends.redis.sentinel import BehindSentinel

        return BehindSentinel(parsed, where or parsed.safe)
    if parsed.is_cluster:
        from millstream.backends.redis.cluster import Cluster

        return Cluster(parsed, where or parsed.safe)
    return OneServer(Connector(url, where=where or parsed.safe))
