"""How a worker serves an address: its shards, consumer limit and order, as the app declares them."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.broker.values import OrderRules
from millstream.model.address import Address


@dataclass(frozen=True, slots=True)
class Serving:
    """An address that a worker serves, with the settings for joining it."""

    address: Address
    """The base address of a queue, a group, a group's dead letters, a topic with broadcasts, or a prefix."""
    shards: int = 0
    """Number of shards, which the workers share. 0 means that the address is not sharded."""
    max_consumers: int | None = None
    """Maximum number of consumers over all workers. ``None`` means any number."""
    order: OrderRules | None = None
    """Rules for messages with an ordering key. ``None`` leaves the stored rules unchanged."""
