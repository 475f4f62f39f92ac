"""How a worker serves an address: shards, consumers and order, as the app declares them."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.broker.values import OrderRules
from millstream.model.address import Address


@dataclass(frozen=True, slots=True)
class Serving:
    """One address that a worker serves, and what it must know to join it."""

    address: Address
    """The whole's: of a queue, a group, a group's dead letters, a topic that is broadcast, or a prefix."""
    shards: int = 0
    """So many of them are to be shared among the workers that serve it; 0: it has none, and is joined itself."""
    max_consumers: int | None = None
    """How many consumers it may have over all workers; None: any number."""
    order: OrderRules | None = None
    """What holds for messages that have a key; None: nothing is said here."""
