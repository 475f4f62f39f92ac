"""Cluster: which node keeps which slot, learned from the nodes and from their redirections."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from millstream.aio.backoff import pauses
from millstream.backends.redis.connect import Connector, Redirected, parse_info
from millstream.backends.redis.topology import Node, Topology, Version
from millstream.errors import BrokerError, BrokerRefused, BrokerUnavailable
from millstream.reporting import logs
from millstream.url import Host, Url

log = logs.logger("millstream.redis")

SLOTS = 16_384

UNKNOWN = "?"
"""Announced instead of a host name by a node whose name is not configured."""

ANSWER_SECONDS = 1.0
"""Seconds within which a node must say who keeps which slot. The next one is asked after that."""

REFRESH_SECONDS = 0.2
"""Minimum seconds between two refreshes of the slot map, however many calls fail."""


class Cluster(Topology):
    """The slot map of a cluster, and one ``Node`` per primary.

    The map is refreshed in the background when a node redirects a call, cannot be reached, or answers that the cluster is down.
    Calls use the map that they find: if it is outdated, they are redirected, or fail and are repeated by their callers.
    """

    divided = True

    def __init__(self, url: Url, where: str) -> None:
        self._url = url
        self._where = where
        self._owners: list[Node | None] = [None] * SLOTS
        self._learned: list[Node | None] = [None] * SLOTS
        """The map as it was learned last, without the corrections by redirections."""
        self._nodes: dict[Host, Node] = {}
        """The primaries, and nodes that calls were redirected to."""
        self._others: list[Host] = []
        """Replicas. They are asked for the map if no primary answers."""
        self._version = Version()
        self._refreshing: asyncio.Task[None] | None = None
        self._doubted = False
        self._closed = False
        self._heard_at: Host | None = None
        self._subscriber = Connector(self._locate_subscriber, where=where)

    @property
    def subscriber(self) -> Connector:
        return self._subscriber

    async def open(self) -> None:
        await self._learn()
        missing = [slot for slot, owner in enumerate(self._owners) if owner is None]
        if missing:
            raise BrokerUnavailable(
                f"{self._where}: no node serves {len(missing):,} of the {SLOTS:,} slots, among them slot {missing[0]}: "
                "assign them (redis-cli --cluster fix)"
            )

    async def close(self) -> None:
        self._closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refreshing
        for node in self._nodes.values():
            await node.commands.close()

    async def check_replicas(self, replicas: int) -> None:
        node = self.nodes()[0]
        rows = [row.split(" ") for row in str(await node.commands.call("CLUSTER", "NODES"), "utf-8").splitlines()]
        followed = Counter(row[3] for row in rows if "slave" in row[2].split(","))
        for row in rows:
            if "master" in row[2].split(",") and len(row) > 8 and followed[row[0]] < replicas:
                host = row[1].partition("@")[0]
                raise BrokerUnavailable(
                    f"replicas={replicas}, but node {host} of {self._where} has {followed[row[0]]}: add replicas, or lower it"
                )

    def node(self, slot: int) -> Node:
        node = self._owners[slot]
        if node is None:
            self._doubt()
            raise BrokerUnavailable(f"{self._where}: no node serves slot {slot}")
        return node

    def nodes(self) -> Sequence[Node]:
        return list(dict.fromkeys(node for node in self._owners if node is not None))

    def redirect(self, error: Redirected, node: Node) -> Node:
        if error.host.name == UNKNOWN:
            self._doubt()
            raise error
        host = error.host if error.host.name or node.host is None else Host(node.host.name, error.host.port)
        target = self._nodes.get(host) or self._add(host)
        if not error.once:
            self._owners[error.slot] = target
            self._doubt()  # Other slots have probably moved, too.
        return target

    def _add(self, host: Host) -> Node:
        node = self._nodes[host] = Node(self._connector(host, self._doubt), host)
        return node

    def _connector(self, host: Host, troubled: Callable[[], None] = lambda: None) -> Connector:
        return Connector(self._url.of_server(host), where=f"{self._where}, node {host}", troubled=troubled)

    # -- the slot map ------------------------------------------------------------------------------------------------------

    def _doubt(self) -> None:
        """Refresh the map soon. One refresh runs at a time."""
        self._doubted = True
        if not self._closed and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self._refresh(), name="millstream-cluster")

    async def _refresh(self) -> None:
        tries = pauses()
        while self._doubted:
            self._doubted = False
            try:
                if await self._learn():
                    tries = pauses()
            except Exception as error:  # the refresh must never end while the map is doubted
                log.debug("the slot map cannot be refreshed: %s", error)
                self._doubted = True
            await asyncio.sleep(REFRESH_SECONDS + next(tries))

    async def _learn(self) -> bool:
        """Ask one node after another for the map, until one answers. Return whether the map has changed.

        Raises BrokerUnavailable or BrokerRefused.
        """
        failed: list[str] = []
        known = list(self._nodes)
        random.shuffle(known)
        for host in dict.fromkeys([*known, *self._url.hosts, *self._others]):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    rows = await self._ask(host)
            except BrokerRefused:
                raise
            except (BrokerError, TimeoutError) as error:
                failed.append(str(error) or f"{host}: no answer within {ANSWER_SECONDS:g} s")
            else:
                return self._take(rows, host)
        raise BrokerUnavailable(f"{self._where}: no node of the cluster answers ({'; '.join(failed)})")

    async def _ask(self, host: Host) -> list[Any]:
        """Ask one node for its map."""
        known = self._nodes.get(host)
        node = known or Node(self._connector(host))
        try:
            answers = await node.commands.call_together((("CLUSTER", "INFO"), ("CLUSTER", "SLOTS")))
        except BrokerError as error:
            if "cluster support disabled" in str(error):
                raise BrokerRefused(f"{node.where} is not a node of a cluster: use redis:// or rediss:// in the URL") from error
            raise
        finally:
            if known is None:
                await node.commands.close()
        state, rows = parse_info(answers[0]), answers[1]
        if not rows or not self._version.accepts(int(state.get("cluster_current_epoch", 0))):
            raise BrokerUnavailable(f"{node.where}: the node does not know the whole cluster")
        return list(rows)

    def _take(self, rows: list[Any], asked: Host) -> bool:
        """Use a map. Nodes that are not primaries any more are left. Return whether the map has changed."""
        owners: list[Node | None] = [None] * SLOTS
        others: set[Host] = set()
        for first, last, primary, *replicas in rows:
            host = _announced(primary, asked)
            others.update(_announced(replica, asked) for replica in replicas)
            node = self._nodes.get(host) or self._add(host)
            owners[first : last + 1] = [node] * (last + 1 - first)
        moves = Counter((old, new) for old, new in zip(self._learned, owners, strict=True) if old is not new)
        self._owners, self._learned, self._others = owners, list(owners), sorted(others)
        for (old, new), count in moves.items():
            if old is not None and new is not None:
                slots = "1 slot" if count == 1 else f"{count:,} slots"
                log.warning("%s: %s moved from %s to %s", self._where, slots, old.name, new.name)
        for old in {old for old, _ in moves if old is not None} - set(owners):
            self._nodes = {host: node for host, node in self._nodes.items() if node is not old}
            old.connector.leave()
            if old.host == self._heard_at:
                self._subscriber.leave()
        return bool(moves)

    async def _locate_subscriber(self) -> str:
        """Return a node that was not used last time, if there is another one: any node receives all messages."""
        hosts = [node.host for node in self.nodes() if node.host is not None]
        others = [host for host in hosts if host != self._heard_at] or hosts
        if not others:
            raise BrokerUnavailable(f"{self._where}: no node of the cluster is known")
        self._heard_at = random.choice(others)
        return self._url.of_server(self._heard_at)


def _announced(place: list[Any], asked: Host) -> Host:
    """Return the address that a node announces: a host name or an IP address. A node without a name has its IP address among
    its other properties; a node without any address is at the address of the node that was asked."""
    name, port = (place[0] or b"").decode(), place[1]
    if name == UNKNOWN:
        more: list[bytes] = place[3] if len(place) > 3 else []
        name = dict(zip(more[::2], more[1::2], strict=True)).get(b"ip", b"").decode()
    return Host(name or asked.name, port)
