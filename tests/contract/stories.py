"""Stories: test bodies that run on a real server. A story gets a backend, and the server as another program sees it."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.backends.redis import RedisBroker
from millstream.backends.redis.keys import queue_keys, topic_keys
from millstream.model.address import Address
from millstream.testing.backend import PATIENCE, BackendUnderTest
from millstream.testing.topic import TOPIC


class Server:
    """The keys of one address, and the statistics of the server."""

    def __init__(self, broker: RedisBroker, namespace: str, address: Address) -> None:
        self.call = broker._calls.node(None).commands.call
        self.keys = queue_keys(namespace, address)
        self.topic = topic_keys(namespace, TOPIC)

    async def left(self, *words: str) -> list[str]:
        """Return those of the keys that exist."""
        return [word for word in words if await self.call("EXISTS", self.keys[word])]

    async def lose(self, word: str) -> None:
        """Delete an existing key."""
        assert await self.call("DEL", self.keys[word]) == 1

    async def scripts(self) -> int:
        """Return the number of scripts that the server has run."""
        told: bytes = await self.call("INFO", "commandstats")
        found = re.search(rb"cmdstat_evalsha:calls=(\d+)", told)
        return int(found[1]) if found else 0


Story = Callable[[BackendUnderTest, Server], Coroutine[Any, Any, None]]
Tell = Callable[[Story], None]
"""Runs a story on a server, at an address in a new namespace."""


def teller(url: str, address: Address) -> Tell:
    """Return a function that runs stories on this server, at this address."""

    def play(story: Story) -> None:
        namespace = f"test-{uuid.uuid4().hex}"

        async def main() -> None:
            async with (
                asyncio.timeout(PATIENCE),
                BackendUnderTest(lambda: RedisBroker(url, namespace=namespace), address) as backend,
            ):
                assert isinstance(backend.broker, RedisBroker)
                await story(backend, Server(backend.broker, namespace, address))

        asyncio.run(main())

    return play
