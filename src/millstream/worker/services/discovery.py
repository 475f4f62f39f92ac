"""Discovery: groups that are in every topic whose name begins so, found while the worker runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from millstream.broker import Producing
from millstream.errors import BrokerUnavailable
from millstream.events.subscription import PrefixSubscription, Subscription
from millstream.reporting import logs

log = logs.logger("millstream.worker")

DISCOVER_SECONDS = 2.0
"""How soon a new topic is served. Nothing is lost meanwhile: its groups exist before anything is published to it."""


class Discovery:
    """Has each topic that is found served once; those that have a handler of their own for the group are left to it."""

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
        """Addresses that are served already."""
        self._known: dict[PrefixSubscription, set[str]] = {prefix: set() for prefix in prefixes}

    async def look(self) -> None:
        """Serve what is new."""
        for prefix, known in self._known.items():
            for topic in await self._broker.open_prefix(prefix.prefix, prefix.group, prefix.start, known):
                subscription = prefix.to(topic)
                if subscription.address.base not in self._taken:
                    await self._serve(subscription)
                    log.info("topic %r is served for group %r too: its name begins with %r", topic, prefix.group, prefix.prefix)
                known.add(topic)

    async def run(self) -> None:
        """Look for ever."""
        while self._known:
            await asyncio.sleep(DISCOVER_SECONDS)
            try:
                await self.look()
            except BrokerUnavailable as error:
                log.debug("could not look for topics: %s", error)
