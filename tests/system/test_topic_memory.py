"""Memory of a topic: the log keeps what the slowest group still needs, and nothing for events that wait for a retry."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from millstream import Millstream, RetryPolicy
from millstream.backends.redis.keys import topic_keys
from millstream.events.topic import Topic
from tests.system.harness import PATIENCE, Server, running_server

EVENTS = int(os.environ.get("MILLSTREAM_EVENTS", "2000"))
WITHIN = PATIENCE + EVENTS / 200


class Pace:
    """A handler that handles as many events as the test allows."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._allowed = asyncio.Semaphore(0)

    def let(self, events: int) -> None:
        for _ in range(events):
            self._allowed.release()

    async def handle(self, number: int) -> None:
        await self._allowed.acquire()
        self.seen.append(number)


class Stage:
    """A topic and its log."""

    def __init__(self, server: Server, app: Millstream) -> None:
        self.app = app
        self._client = server.client()
        self._key = topic_keys(app.settings.namespace, "numbers")["log"]

    def topic(self, **options: Any) -> Topic[int]:
        return self.app.topic("numbers", int, **options)

    @property
    def length(self) -> int:
        return int(self._client.xlen(self._key))

    @property
    def bytes(self) -> int:
        return int(self._client.memory_usage(self._key, samples=0) or 0)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        async with asyncio.timeout(WITHIN):
            while not condition():
                await asyncio.sleep(0.02)
        assert condition(), what

    async def until_length(self, length: int) -> None:
        await self.until(lambda: self.length == length, f"{length} entries in the log")


@pytest.fixture
def server() -> Iterator[Server]:
    """A server without persistence: its data is not needed after the test, so no write waits for a disk."""
    with running_server("--appendonly", "no") as server:
        yield server


@pytest.fixture
def tell(server: Server) -> Callable[[Callable[[Stage], Coroutine[Any, Any, None]]], None]:
    def play(story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with Millstream(server.url, grace=0.1, retry=RetryPolicy(5, delay=3_600.0, jitter=False)) as app:
                await story(Stage(server, app))

        asyncio.run(asyncio.wait_for(main(), 3 * WITHIN))

    return play


Tell = Callable[[Callable[[Stage], Coroutine[Any, Any, None]]], None]


def test_the_log_keeps_what_the_slowest_group_needs_until_the_group_is_removed(tell: Tell) -> None:
    async def story(stage: Stage) -> None:
        topic = stage.topic()
        fast, middle, slow = paces = [Pace() for _ in range(3)]
        for name, pace in zip(("fast", "middle", "slow"), paces, strict=True):
            topic.subscribe(name, concurrency=1 if pace is not fast else None)(pace.handle)
        await topic.publish_many(range(EVENTS))
        whole = stage.bytes
        fast.let(EVENTS)
        middle.let(EVENTS // 2)
        slow.let(EVENTS // 10)
        async with stage.app.worker(["numbers/fast", "numbers/middle"]):
            async with stage.app.worker(["numbers/slow"]):
                await stage.until_length(EVENTS - EVENTS // 10)
                await stage.until(lambda: len(fast.seen) == EVENTS and len(middle.seen) == EVENTS // 2, "the others to proceed")
                slow.let(EVENTS // 5)
                await stage.until_length(EVENTS - EVENTS // 10 - EVENTS // 5)
            assert len(slow.seen) == EVENTS // 10 + EVENTS // 5
            await topic.group("slow").remove()
            await stage.until_length(EVENTS // 2)
            assert stage.bytes < 0.6 * whole
            middle.let(EVENTS)
            await stage.until_length(0)
            assert stage.bytes < 0.05 * whole
        assert middle.seen == sorted(fast.seen) == list(range(EVENTS))

    tell(story)


def test_a_rewound_group_receives_exactly_the_retained_events(tell: Tell) -> None:
    kept = EVENTS // 5

    async def story(stage: Stage) -> None:
        topic = stage.topic(retention_count=kept)
        first, other = Pace(), Pace()
        for name, pace in (("first", first), ("other", other)):
            pace.let(3 * EVENTS)
            topic.subscribe(name)(pace.handle)
        await topic.publish_many(range(EVENTS))
        async with stage.app.worker():
            await stage.until(lambda: len(first.seen) == len(other.seen) == EVENTS, "both groups to handle all events")
            await stage.until_length(kept)
            await topic.group("first").rewind()
            await stage.until(lambda: len(first.seen) >= EVENTS + kept, "the kept events to be delivered again")
            await topic.publish(-1)
            await stage.until(lambda: -1 in first.seen and -1 in other.seen, "the event published after that")
            await stage.until_length(kept)
        assert sorted(first.seen) == sorted([-1, *range(EVENTS), *range(EVENTS - kept, EVENTS)])
        assert sorted(other.seen) == [-1, *range(EVENTS)]

    tell(story)


def test_events_that_wait_for_a_retry_do_not_keep_the_log_long(tell: Tell) -> None:
    async def story(stage: Stage) -> None:
        topic = stage.topic()
        easy = Pace()
        topic.subscribe("easy")(easy.handle)

        @topic.subscribe("stubborn")
        async def stubborn(number: int) -> None:
            raise ValueError("not now")

        await topic.publish_many(range(EVENTS))
        whole = stage.bytes
        easy.let(EVENTS)
        async with stage.app.worker():
            await stage.until_length(0)
            waiting = await stage.app.inspector.queue("numbers/stubborn")
        assert (waiting.scheduled, waiting.ready, waiting.running) == (EVENTS, 0, 0)
        assert sorted(easy.seen) == list(range(EVENTS))
        assert stage.bytes < 0.05 * whole

    tell(story)
