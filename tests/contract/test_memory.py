"""The memory backend keeps the contract, and is thread-safe."""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

from millstream.backends.memory import MemoryBroker
from millstream.broker import Post, Receipt
from millstream.model.address import Address
from millstream.model.outcome import Kind, Outcome
from millstream.testing import BrokerContract, QueueContract
from millstream.testing.backend import DONE_ENDING, PATIENCE


class InMemory:
    def setup_method(self) -> None:
        self.name = uuid.uuid4().hex

    def make_broker(self, **options: Any) -> MemoryBroker:
        return MemoryBroker(self.name, **options)


class TestMemoryBroker(InMemory, BrokerContract):
    pass


class TestGroupInMemory(InMemory, QueueContract):
    """A group keeps the contract of a queue."""

    queue, other_queue = Address("t/g"), Address("t/h")


def broker(**options: Any) -> MemoryBroker:
    return MemoryBroker(f"test-{uuid.uuid4().hex}", **options)


def in_a_thread(coroutine: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
    """Run a coroutine in its own event loop and thread."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(asyncio.run(coroutine()))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_a_publish_in_one_thread_ends_a_wait_in_another() -> None:
    backend = broker()
    joined = threading.Event()

    async def work() -> bytes | None:
        await backend.join(Address("q"), "c", 30)
        joined.set()
        return (await backend.claim(Address("q"), "c", 1, wait=PATIENCE)).entries[0].body

    working = in_a_thread(work)
    assert joined.wait(PATIENCE)
    asyncio.run(backend.publish(Address("q"), [Post("a", b"body")]))
    assert working.result(PATIENCE) == b"body"


def test_a_waiter_receives_an_ending_from_another_thread() -> None:
    backend = broker()

    async def work() -> None:
        await backend.join(Address("q"), "c", 30)
        (entry,) = (await backend.claim(Address("q"), "c", 1, wait=PATIENCE)).entries
        await backend.settle(Address("q"), "c", [Outcome(Kind.DONE, entry.ref, "a", result=DONE_ENDING, result_ttl=60)])

    async def ask() -> bytes | None:
        await backend.publish(Address("q"), [Post("a", b"")])
        working = in_a_thread(work)
        ending = await backend.results.wait(Address("q"), "a", PATIENCE)
        working.result(PATIENCE)
        return ending

    assert asyncio.run(ask()) == DONE_ENDING


def test_many_threads_neither_lose_nor_duplicate_a_job() -> None:
    backend = broker()
    total = 400

    async def produce(sender: str) -> None:
        for serial in range(1, total // 4 + 1):
            await backend.publish(
                Address("q"), [Post(f"{sender}-{serial}", f"{sender}-{serial}".encode(), serial=serial)], sender=sender
            )

    async def consume(name: str) -> list[bytes | None]:
        done: list[bytes | None] = []
        await backend.join(Address("q"), name, 30)
        while (await backend.inspector.queue(Address("q"))).totals["done"] < total:
            entries = (await backend.claim(Address("q"), name, 7, wait=0.01)).entries
            await backend.settle(Address("q"), name, [Outcome(Kind.DONE, entry.ref, "") for entry in entries])
            done += [entry.body for entry in entries]
        return done

    consuming = [in_a_thread(partial(consume, f"c{n}")) for n in range(4)]
    producing = [in_a_thread(partial(produce, f"s{n}")) for n in range(4)]
    for future in producing:
        future.result(PATIENCE)
    done = [body for future in consuming for body in future.result(PATIENCE)]
    assert sorted(done) == sorted(f"s{s}-{n}".encode() for s in range(4) for n in range(1, total // 4 + 1))


def test_a_wait_in_a_closed_event_loop_does_not_affect_a_publish() -> None:
    backend = broker()

    async def abandon() -> None:
        await backend.join(Address("q"), "c", 30)
        waiting = asyncio.create_task(backend.claim(Address("q"), "c", 1, wait=PATIENCE))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(abandon())
    asyncio.run(backend.publish(Address("q"), [Post("a", b"")]))
    assert asyncio.run(backend.inspector.status(Address("q"), "a")) == "ready"


def test_brokers_with_the_same_name_and_namespace_share_their_queues() -> None:
    one, same, elsewhere = MemoryBroker("n"), MemoryBroker("n"), MemoryBroker("n", namespace="other")
    asyncio.run(one.publish(Address("q"), [Post("a", b"")]))
    assert asyncio.run(same.inspector.status(Address("q"), "a")) == "ready"
    assert asyncio.run(elsewhere.inspector.status(Address("q"), "a")) == "unknown"


def test_brokers_without_a_name_share_nothing() -> None:
    one, other = MemoryBroker(), MemoryBroker()
    asyncio.run(one.publish(Address("q"), [Post("a", b"")]))
    assert asyncio.run(other.inspector.status(Address("q"), "a")) == "unknown"


def test_queues_are_deleted_with_the_last_broker_of_their_name() -> None:
    one = MemoryBroker("transient")
    asyncio.run(one.publish(Address("q"), [Post("a", b"")]))
    del one
    gc.collect()
    assert asyncio.run(MemoryBroker("transient").inspector.status(Address("q"), "a")) == "unknown"


def test_the_given_clock_is_used_for_every_time() -> None:
    now = 1000.0
    backend = MemoryBroker(id_ttl=50, clock=lambda: now)

    async def begin() -> None:
        await backend.join(Address("q"), "c", 30)
        await backend.publish(Address("q"), [Post("a", b"", delay=5)])

    asyncio.run(begin())
    now = 1005.0
    (entry,) = asyncio.run(backend.claim(Address("q"), "c", 1)).entries
    outcome = Outcome(Kind.DONE, entry.ref, "a", result=DONE_ENDING, result_ttl=10, given_id=True)
    asyncio.run(backend.settle(Address("q"), "c", [outcome]))
    assert asyncio.run(backend.inspector.status(Address("q"), "a")) == "done"
    now = 1015.0
    assert asyncio.run(backend.inspector.status(Address("q"), "a")) == "unknown"
    assert asyncio.run(backend.publish(Address("q"), [Post("a", b"")])) == [Receipt.EXISTS]
    now = 1055.0
    assert asyncio.run(backend.publish(Address("q"), [Post("a", b"")])) == [Receipt.CREATED]


def test_the_memory_of_expired_records_is_freed() -> None:
    now = 0.0
    backend = MemoryBroker(id_ttl=1, clock=lambda: now)

    async def live(number: int) -> None:
        await backend.publish(Address("q"), [Post(f"n{number}", b"")])
        await backend.cancel(Address("q"), f"n{number}")

    async def main() -> None:
        nonlocal now
        for number in range(10_000):
            now += 1.0
            await live(number)

    asyncio.run(main())
    with backend._locked(Address("q")) as rules:
        assert len(rules.endings) + len(rules._given) < 5000
