"""Wait until replicas have acknowledged writes. One round of a node confirms everything that the node answered before it."""

from __future__ import annotations

import asyncio

from millstream.backends.redis.calls import Calls
from millstream.backends.redis.link import Link
from millstream.backends.redis.topology import Node
from millstream.broker.values import NotReplicated
from millstream.errors import BrokerError, BrokerUnavailable
from millstream.model.address import Address

MARK_TTL_MS = 60_000
"""Milliseconds until the key that each round writes expires."""


class Replication:
    """Confirms the writes of one node, over a link of its own, because WAIT blocks its connection.

    WAIT covers only the writes of its own connection, so a round first makes a small write. The replicas receive all writes in
    order: those that acknowledge this write have every earlier one, too. Callers that come during a round share the next one.
    """

    def __init__(self, node: Node, replicas: int, timeout: float) -> None:
        self._node = node
        self._replicas = replicas
        self._timeout = timeout
        self._link = Link(node.connector)
        self._waiting: list[tuple[asyncio.Future[None], str]] = []
        """Callers of the next round, and the run id of the server that answered them."""
        self._key = ""
        self._rounds: asyncio.Task[None] | None = None

    async def confirm(self, key: str, run_id: str) -> None:
        """Return when the replicas have acknowledged every write that this server has answered before.

        ``key`` is written by the round. It must be in a slot of the node.

        Raises:
            NotReplicated: Too few replicas have acknowledged the writes within the timeout.
            BrokerUnavailable: The server cannot be reached, or is not the one that answered: it may not have the writes.
        """
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((confirmed, run_id))
        self._key = key
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._run())
        await confirmed

    async def close(self) -> None:
        """Close the link. Callers get BrokerUnavailable."""
        await self._link.close()
        if self._rounds is not None:
            await asyncio.wait((self._rounds,))

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            error = await self._round(self._key)
            for confirmed, run_id in waiting:
                if confirmed.done():  # the caller was cancelled
                    continue
                if run_id != self._link.run_id:  # first: this server may not have the write at all
                    confirmed.set_exception(BrokerUnavailable(f"{self._node.where} was restarted or replaced during the call"))
                elif error is not None:
                    confirmed.set_exception(type(error)(str(error)))
                else:
                    confirmed.set_result(None)

    async def _round(self, key: str) -> BrokerUnavailable | None:
        """Return ``None`` if enough replicas have acknowledged a new write, otherwise the error."""
        write = ("SET", key, "", "PX", MARK_TTL_MS)
        wait = ("WAIT", self._replicas, max(1, round(1000 * self._timeout)))
        try:
            _, acknowledged = await self._link.call_together((write, wait), block=self._timeout)
        except BrokerError as error:
            # A full server refuses this write, but not the settles that free its memory.
            return NotReplicated(str(error)) if "OOM" in str(error) else BrokerUnavailable(str(error))
        except Exception as error:  # no caller may wait forever
            return BrokerUnavailable(f"the write could not be confirmed: {error!r}")
        if acknowledged >= self._replicas:
            return None
        return NotReplicated(
            f"{self._node.where}: only {acknowledged} of {self._replicas} replicas acknowledged the write within "
            f"{self._timeout:g} s. It may have been accepted: repeat the call with the same ids"
        )


class Confirmations:
    """Confirms writes by address, with one ``Replication`` per node."""

    def __init__(self, calls: Calls, replicas: int, timeout: float) -> None:
        self._calls = calls
        self._replicas = replicas
        self._timeout = timeout
        self._nodes: dict[Node, Replication] = {}

    async def confirm(self, address: Address, run_id: str) -> None:
        """Wait until the replicas have what the node of an address answered. ``run_id`` is that of the server before the call.

        Raises NotReplicated or BrokerUnavailable, as ``Replication.confirm`` does.
        """
        node = self._calls.node(address)
        if node.commands.run_id != run_id:
            raise BrokerUnavailable(f"{node.where} was restarted or replaced during the call")
        replication = self._nodes.get(node)
        if replication is None:
            replication = self._nodes[node] = Replication(node, self._replicas, self._timeout)
        await replication.confirm(self._calls.names(address)["sync"], run_id)

    async def close(self) -> None:
        """Close all links."""
        for replication in self._nodes.values():
            await replication.close()
