"""Discovery: finds new topics that match a prefix subscription while the worker runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from millstream.broker import Producing
from millstream.errors import BrokerUnavailable
from millstream.events.subscription import PrefixSubscription, Subscription
from millstream.reporting import logs

log = logs.logger("millstream.worker")

DISCOVER_SECONDS = 2.0
"""Seconds between two searches for new topics. No event is lost in between: the groups of a topic exist before its first
event is published."""


class Discovery:
    """Starts to serve each topic that it finds, once. Topics with their own handler for the group are skipped."""

    def __init__(
        self,
        broker: Producing,
        prefixes: Sequence[PrefixSubscription],
        serve: Callable[[Subscription], Awaitable[None]],
        taken: Collection[str],
    ) -> None:
        self._broker = broker
        self._serve = serve
        self._taken = taken
        """Addresses that have their own handler."""
        self._known: dict[PrefixSubscription, set[str]] = {prefix: set() for prefix in prefixes}

    async def look(self) -> None:
        """Serve all new topics."""
        for prefix, known in self._known.items():
            for topic in await self._broker.open_prefix(prefix.prefix, prefix.group, prefix.start, known):
                subscription = prefix.to(topic)
                if subscription.address.base not in self._taken:
                    await self._serve(subscription)
                    log.info(
                        "now serving topic %r for group %r: its name matches prefix %r", topic, prefix.group, prefix.prefix
                    )
                known.add(topic)

    async def run(self) -> None:
        """Search periodically until cancelled."""
        while self._known:
            await asyncio.sleep(DISCOVER_SECONDS)
            try:
                await self.look()
            except BrokerUnavailable as error:
                log.debug("could not search for new topics: %s", error)
