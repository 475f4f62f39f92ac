"""Where the messages of a queue or group are: its own address, or those of its shards."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.broker import Broker
from millstream.model.address import shard_addresses, shard_of, split_address, topic_address


def base(address: str) -> str:
    """Where the number of shards is noted: a queue's own address, or that of a group's topic."""
    parts = split_address(address)
    return address if parts is None else topic_address(parts[0])


async def addresses_of(broker: Broker, address: str) -> Sequence[str]:
    """The address itself, or those of its shards, if it is a whole that has some."""
    if shard_of(address) is not None:
        return [address]
    return shard_addresses(address, await broker.inspector.shards(base(address)))
