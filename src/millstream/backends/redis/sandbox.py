"""A temporary namespace: measure the server's memory, and delete the namespace. Other data on the server is not touched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from millstream.backends.redis.connect import parse_info
from millstream.backends.redis.keys import patterns
from millstream.backends.redis.topology import Node, make_topology

T = TypeVar("T")

PAGE = 1_000
"""Keys scanned and deleted per call, so that no call blocks the server for long."""


class Sandbox:
    """One namespace on one server or cluster. Every method may raise BrokerUnavailable."""

    def __init__(self, url: str, namespace: str) -> None:
        self._url = url
        self._namespace = namespace

    def used_memory(self) -> int:
        """Return the memory that the whole server, or all primaries of the cluster, use, in bytes."""
        return asyncio.run(self._with_nodes(_used_memory))

    def erase(self) -> int:
        """Delete every key of the namespace and nothing else. Return the number of deleted keys."""
        return asyncio.run(self._with_nodes(self._erase))

    async def _with_nodes(self, step: Callable[[Sequence[Node]], Coroutine[Any, Any, T]]) -> T:
        topology = make_topology(self._url, "")
        try:
            await topology.open()
            return await step(topology.nodes())
        finally:
            await topology.close()

    async def _erase(self, nodes: Sequence[Node]) -> int:
        erased = 0
        for node in nodes:
            for pattern in patterns(self._namespace):
                cursor = b""
                while cursor != b"0":
                    cursor, names = await node.commands.call("SCAN", cursor or b"0", "MATCH", pattern, "COUNT", PAGE)
                    # One command per key, since the keys of one command must be in the same slot of a cluster.
                    if names:
                        erased += sum(await node.commands.call_together([("UNLINK", name) for name in names]))
        return erased


async def _used_memory(nodes: Sequence[Node]) -> int:
    return sum([int(parse_info(await node.commands.call("INFO", "memory"))["used_memory"]) for node in nodes])
