"""After a failover, connections leave the demoted primary and look up the new primary."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import msgspec
import pytest

from millstream.backends.redis import RedisBroker, results
from millstream.backends.redis.connect import Connector
from millstream.backends.redis.keys import GROUP
from millstream.backends.redis.link import Link
from millstream.broker import Post
from millstream.errors import BrokerUnavailable
from millstream.model.address import Address
from millstream.model.outcome import Kind, Outcome
from tests.stage import looped
from tests.system.harness import Server, running_server


class Name:
    """A name that resolves to the primary, as DNS does."""

    def __init__(self, *servers: Server) -> None:
        self.primary, self._other = servers

    async def locate(self) -> str:
        return self.primary.url

    def fail_over(self) -> None:
        """Make the other server the primary. Connections to the old primary stay open."""
        self.primary.call("REPLICAOF", "127.0.0.1", "1")
        self.primary, self._other = self._other, self.primary


@pytest.fixture
def name() -> Iterator[Name]:
    with running_server() as first, running_server() as second:
        yield Name(first, second)


@looped
async def test_a_link_reconnects_after_a_replica_refused_its_write(name: Name) -> None:
    link = Link(Connector(name.locate))
    await link.call("SET", "written", "before")
    name.fail_over()
    with pytest.raises(BrokerUnavailable, match="READONLY"):
        await link.call("SET", "written", "after")
    await link.call("SET", "written", "after")
    assert name.primary.call("GET", "written") == b"after"
    await link.close()


@looped
async def test_a_link_reconnects_after_its_server_became_a_replica_during_a_blocking_call(name: Name) -> None:
    link, operator = Link(Connector(name.locate)), Link(Connector(name.primary.url))
    await link.ready()
    waiting = asyncio.create_task(link.call_together((("BLPOP", "list", 0),), block=60))
    while b"cmd=blpop" not in await operator.call("CLIENT", "LIST"):
        await asyncio.sleep(0)
    name.fail_over()
    with pytest.raises(BrokerUnavailable, match="UNBLOCKED"):
        await waiting
    name.primary.call("RPUSH", "list", "item")
    assert await link.call_together((("BLPOP", "list", 0),), block=60) == [[b"list", b"item"]]
    await link.close()
    await operator.close()


@looped
async def test_a_caller_that_waits_for_a_result_receives_it_from_the_new_primary(
    name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(results, "LOOK_SECONDS", 3600.0)
    broker = RedisBroker(name.locate, namespace=f"test-{uuid.uuid4().hex}")
    await broker.open()
    await broker.publish(Address("default"), [Post("a", b"body")])
    first = asyncio.create_task(broker.results.wait(Address("default"), "a", None))
    await _until_waited_for(name.primary, broker)
    name.fail_over()
    with pytest.raises(BrokerUnavailable):
        await broker.publish(Address("default"), [Post("b", b"body")])
    await broker.publish(Address("default"), [Post("b", b"body")])
    second = asyncio.create_task(broker.results.wait(Address("default"), "b", None))
    await _until_waited_for(name.primary, broker)
    await broker.join(Address("default"), "hand", 30.0)
    (entry,) = (await broker.claim(Address("default"), "hand", 1)).entries
    await broker.settle(Address("default"), "hand", [Outcome(Kind.DONE, entry.ref, "b", b"ending", 60.0)])
    assert await second == b"ending"
    assert await first is None, "the new primary does not know that job"
    await broker.close()


async def _until_waited_for(server: Server, broker: RedisBroker) -> None:
    """Wait until the caller is registered on this server and has subscribed there."""
    for command in (("PUBSUB", "CHANNELS"), ("HKEYS", broker._names(Address("default"))["waiters"])):
        while not await asyncio.to_thread(server.call, *command):
            await asyncio.sleep(0)


@looped
async def test_settling_a_lost_job_does_not_remove_a_new_job_with_the_same_entry_id(name: Name) -> None:
    queue, other = Address("default"), "other"
    broker = RedisBroker(name.locate, namespace=f"test-{uuid.uuid4().hex}")
    await broker.open()
    await broker.join(queue, "hand", 30.0)
    await broker.join(queue, other, 30.0)
    keys, (old, new) = broker._names(queue), (name.primary, name._other)
    for key in old.call("KEYS", "*"):  # what was replicated before the failover
        new.call("RESTORE", key, 0, old.call("DUMP", key))
    await broker.publish(queue, [Post("lost", msgspec.msgpack.encode("lost"))])
    (entry,) = (await broker.claim(queue, "hand", 1)).entries
    name.fail_over()
    # The clock of the new primary is behind: a new job gets the entry id of the lost one, and runs elsewhere.
    new.call("XADD", keys["stream"], entry.ref, "d", msgspec.msgpack.encode("new"))
    new.call("HSET", keys["index"], "new", entry.ref)
    new.call("XREADGROUP", "GROUP", GROUP, other, "STREAMS", keys["stream"], ">")
    with pytest.raises(BrokerUnavailable):  # the demoted primary refuses it
        await broker.settle(queue, "hand", [Outcome(Kind.DONE, entry.ref, "lost")])
    settled = await broker.settle(queue, "hand", [Outcome(Kind.DONE, entry.ref, "lost")])
    assert settled == 0
    assert new.call("XLEN", keys["stream"]) == 1
    assert new.call("HGET", keys["index"], "new") == entry.ref
    assert await broker.settle(queue, other, [Outcome(Kind.DONE, entry.ref, "new")]) == 1
    await broker.close()


@looped
async def test_jobs_claimed_before_a_failover_are_settled_after_it(name: Name) -> None:
    queue = Address("default")
    broker = RedisBroker(name.locate, namespace=f"test-{uuid.uuid4().hex}")
    await broker.open()
    await broker.join(queue, "hand", 30.0)
    await broker.publish(queue, [Post(each, msgspec.msgpack.encode(each)) for each in "abc"])
    a, b, c = (await broker.claim(queue, "hand", 3)).entries
    for key in name.primary.call("KEYS", "*"):
        name._other.call("RESTORE", key, 0, name.primary.call("DUMP", key))
    name.fail_over()
    with pytest.raises(BrokerUnavailable):
        await broker.settle(queue, "hand", [Outcome(Kind.DONE, a.ref, "a")])
    assert await broker.settle(queue, "hand", [Outcome(Kind.DONE, a.ref, "a", b"ending", 60.0)]) == 1
    assert (await broker.claim(queue, "hand", 0)).changed, "the worker is told to compare its messages with the new server"
    assert await broker.recover(queue, "hand", [b.ref]) == [c]
    assert not (await broker.claim(queue, "hand", 0)).changed
    assert await broker.settle(queue, "hand", [Outcome(Kind.DONE, b.ref, "b"), Outcome(Kind.DONE, c.ref, "c")]) == 2
    assert broker._doubtful == {}
    assert name.primary.call("XLEN", broker._names(queue)["stream"]) == 0
    await broker.close()
