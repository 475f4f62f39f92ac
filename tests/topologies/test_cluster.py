"""Cluster: every queue is on the node of its slot, and follows its slot wherever it goes."""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from chaos.server import PrivateServer
from chaos.topologies import Cluster, node_id
from millstream import Millstream
from millstream.backends.redis import RedisBroker
from millstream.backends.redis.keys import queue_keys
from millstream.backends.redis.sandbox import Sandbox
from millstream.broker import Post
from millstream.errors import BrokerError, BrokerRefused, BrokerUnavailable
from millstream.model.address import Address
from tests.stage import looped
from tests.topologies.conftest import ENGINE, publish


def new_namespace() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster that the test may change."""
    with Cluster(ENGINE, replicas=1) as running:
        yield running


@asynccontextmanager
async def opened(url: str, namespace: str) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(url, namespace=namespace)
    try:
        await broker.open()
        yield broker
    finally:
        await broker.close()


def slot_of(namespace: str, queue: Address) -> int:
    return key_slot(queue_keys(namespace, queue)["stream"].encode())


def one_queue_per_node(cluster: Cluster, namespace: str) -> dict[PrivateServer, Address]:
    """Return a queue on each primary."""
    found: dict[PrivateServer, Address] = {}
    for number in range(100):
        queue = Address(f"q{number}")
        found.setdefault(cluster.primary_of(queue_keys(namespace, queue)["stream"]), queue)
    return found


def job_ids(server: PrivateServer, namespace: str, queue: Address) -> set[bytes]:
    return set(server.call("HKEYS", queue_keys(namespace, queue)["index"]))


def move_slot(cluster: Cluster, slot: int, source: PrivateServer, target: PrivateServer) -> None:
    """Assign a slot to another node."""
    for node in (target, source, *cluster.primaries):
        node.call("CLUSTER", "SETSLOT", slot, "NODE", node_id(target))


# -- every node is used ----------------------------------------------------------------------------------------------------


@looped
async def test_jobs_of_queues_on_all_nodes_run_and_return_results(cluster: Cluster) -> None:
    namespace = new_namespace()
    queues = one_queue_per_node(cluster, namespace)
    assert len(queues) == 3
    async with Millstream(cluster.url, namespace=namespace) as app:
        for queue in queues.values():
            app.queue(queue)

        @app.task(result_ttl=60)
        async def double(number: int) -> int:
            return 2 * number

        async with app.worker():
            jobs = [await double.options(queue=queue).enqueue(n) for n, queue in enumerate(queues.values())]
            assert [await job.result(timeout=30) for job in jobs] == [0, 2, 4]
        for node, queue in queues.items():
            assert node.call("EXISTS", queue_keys(namespace, queue)["stats"])


@looped
async def test_one_living_seed_is_enough(cluster: Cluster) -> None:
    async with opened(f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.nodes[0].port}", new_namespace()) as broker:
        await broker.publish(Address("q"), [Post("a", b"body")])


@looped
async def test_without_a_living_seed_the_error_names_each_of_them() -> None:
    with pytest.raises(BrokerUnavailable, match=r"no node of the cluster answers .*127\.0\.0\.1:1 .*127\.0\.0\.1:2 "):
        async with opened("redis+cluster://127.0.0.1:1,127.0.0.1:2", new_namespace()):
            pass


@looped
async def test_a_plain_url_to_a_node_of_a_cluster_is_refused(cluster: Cluster) -> None:
    with pytest.raises(BrokerRefused, match=r"is a node of a cluster: use redis\+cluster://"):
        async with opened(f"redis://127.0.0.1:{cluster.nodes[0].port}", new_namespace()):
            pass


@looped
async def test_a_cluster_url_to_a_plain_server_is_refused(plain_server: PrivateServer) -> None:
    with pytest.raises(BrokerRefused, match=r"is not a node of a cluster: use redis://"):
        async with opened(f"redis+cluster://127.0.0.1:{plain_server.port}", new_namespace()):
            pass


@looped
async def test_a_cluster_with_uncovered_slots_is_refused_before_anything_is_written() -> None:
    with Cluster(ENGINE, 3, 0, "--cluster-require-full-coverage", "no") as own:
        own.nodes[0].call("CLUSTER", "DELSLOTS", 7)
        with pytest.raises(BrokerUnavailable, match=r"no node serves 1 of the 16,384 slots, among them slot 7"):
            async with opened(own.url_of(own.nodes[0]), new_namespace()):
                pass
        assert [node.call("DBSIZE") for node in own.nodes] == [0, 0, 0]


@looped
async def test_the_doctor_examines_every_primary(cluster: Cluster) -> None:
    async with opened(cluster.url, new_namespace()) as broker:
        found = await broker.inspector.examine()
    servers = {finding.check for finding in found if finding.check.startswith("server ")}
    assert servers == {f"server 127.0.0.1:{node.port}" for node in one_queue_per_node(cluster, "any")}


def test_a_sandbox_is_erased_on_every_primary(cluster: Cluster) -> None:
    namespace = new_namespace()
    queues = one_queue_per_node(cluster, namespace)

    async def fill() -> None:
        async with opened(cluster.url, namespace) as broker:
            for queue in queues.values():
                await broker.publish(queue, [Post("a", b"body")])

    asyncio.run(fill())
    sandbox = Sandbox(cluster.url, namespace)
    assert sandbox.used_memory() > 0
    assert sandbox.erase() > 3
    for node in queues:
        assert not node.call("KEYS", f"*{namespace}*")


# -- slots that move -------------------------------------------------------------------------------------------------------


@looped
async def test_a_call_follows_its_slot_to_another_node(own_cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "millstream.redis")
    namespace = new_namespace()
    (source, queue), (target, _), *_ = one_queue_per_node(own_cluster, namespace).items()
    async with opened(own_cluster.url, namespace) as broker:
        await broker.inspector.queue(queue)
        await asyncio.to_thread(move_slot, own_cluster, slot_of(namespace, queue), source, target)
        await broker.publish(queue, [Post("a", b"body")])  # redirected, without an error
        assert job_ids(target, namespace, queue) == {b"a"}
        while "1 slot moved" not in caplog.text:
            await asyncio.sleep(0.01)


@looped
async def test_a_waiting_claim_follows_its_slot_to_another_node(own_cluster: Cluster) -> None:
    namespace = new_namespace()
    (source, queue), (target, _), *_ = one_queue_per_node(own_cluster, namespace).items()
    slot = slot_of(namespace, queue)
    async with Millstream(own_cluster.url, namespace=namespace) as app:

        @app.task(queue=queue, result_ttl=60)
        async def double(number: int) -> int:
            return 2 * number

        async with app.worker():
            assert await (await double.enqueue(1)).result(timeout=30) == 2
            if not await asyncio.to_thread(_migrates_atomically, source, target, slot):
                pytest.skip("only Valkey 9 moves a slot in one step")
            while own_cluster.server_of(slot) is not target:
                await asyncio.sleep(0.01)
            assert await (await double.enqueue(2)).result(timeout=30) == 4
            assert target.call("EXISTS", queue_keys(namespace, queue)["stats"])


def _migrates_atomically(source: PrivateServer, target: PrivateServer, slot: int) -> bool:
    try:
        source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", node_id(target))
    except Exception as error:
        if "unknown" in str(error).lower():
            return False
        raise
    return True


@looped
async def test_while_a_slot_moves_key_by_key_its_queue_waits_and_nothing_is_half_done(own_cluster: Cluster) -> None:
    namespace = new_namespace()
    (source, queue), (target, _), *_ = one_queue_per_node(own_cluster, namespace).items()
    slot = slot_of(namespace, queue)
    async with opened(own_cluster.url, namespace) as broker:
        await broker.join(queue, "worker", 30.0)
        await broker.publish(queue, [Post("a", b"body"), Post("b", b"body")])
        (first,) = (await broker.claim(queue, "worker", 1)).entries
        before = _contents(source, namespace)
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))
        keys = source.call("CLUSTER", "GETKEYSINSLOT", slot, 100)
        assert len(keys) > 3
        for moved in range(len(keys) + 1):  # in every state of the migration
            for verb in (
                broker.publish(queue, [Post("c", b"body")]),
                broker.claim(queue, "worker", 1),
                broker.release(queue, "worker", [first.ref]),
                broker.renew(queue, {"worker": 60.0}),
                broker.pause(queue),
                broker.join(queue, "other", 30.0),
                broker.leave(queue, "worker"),
            ):
                with pytest.raises(BrokerUnavailable):
                    await verb
            assert _contents(source, namespace) | _contents(target, namespace) == before
            if moved < len(keys):
                source.call("MIGRATE", "127.0.0.1", target.port, keys[moved], 0, 5000)
        await asyncio.to_thread(move_slot, own_cluster, slot, source, target)
        await publish(broker, queue, "c")
        assert job_ids(target, namespace, queue) == {b"a", b"b", b"c"}


def _contents(server: PrivateServer, namespace: str) -> dict[Any, Any]:
    """Return every key of the namespace on a node, with its value."""
    found: dict[Any, Any] = {}
    with redis.Redis(unix_socket_path=server.path, single_connection_client=True) as client:
        keys: Any = client.execute_command("KEYS", f"*{namespace}:q:*")
        for key in keys:
            client.execute_command("ASKING")  # the slot may be on its way to this node
            found[key] = client.execute_command("DUMP", key)
    return found


# -- nodes that come and go ------------------------------------------------------------------------------------------------


@looped
async def test_after_a_primary_was_killed_its_replica_serves_the_queue(own_cluster: Cluster) -> None:
    namespace = new_namespace()
    (node, queue), *_ = one_queue_per_node(own_cluster, namespace).items()
    async with opened(own_cluster.url, namespace) as broker:
        await publish(broker, queue, "before")
        assert node.call("WAIT", 1, 5000) == 1
        node.end(signal.SIGKILL)
        await publish(broker, queue, "after")
        promoted = own_cluster.primary_of(queue_keys(namespace, queue)["stream"])
        assert promoted is not node
        assert job_ids(promoted, namespace, queue) == {b"before", b"after"}


@looped
async def test_a_queue_whose_node_does_not_answer_delays_no_other_queue() -> None:
    with Cluster(ENGINE, 3, 0, "--cluster-require-full-coverage", "no") as own:
        namespace = new_namespace()
        queues = one_queue_per_node(own, namespace)
        registry = own.primary_of(f"{{{namespace}}}:queues")
        stopped = next(node for node in queues if node is not registry)
        living = [queue for node, queue in queues.items() if node is not stopped]
        async with Millstream(own.url, namespace=namespace) as app:
            finish = asyncio.Event()
            for queue in queues.values():
                app.queue(queue)

            @app.task(result_ttl=60)
            async def held() -> None:
                await finish.wait()

            @app.task(result_ttl=60)
            async def double(number: int) -> int:
                return 2 * number

            async with app.worker():
                waits = await held.options(queue=queues[stopped]).enqueue()
                while await waits.status() != "running":
                    await asyncio.sleep(0.01)
                with stopped.stopped():
                    finish.set()  # its outcome cannot be settled now
                    for number in range(20):
                        job = await double.options(queue=living[number % 2]).enqueue(number)
                        assert await job.result(timeout=30) == 2 * number
                await waits.result(timeout=30)


@looped
async def test_a_node_that_joined_serves_the_slots_that_it_gets(own_cluster: Cluster) -> None:
    namespace = new_namespace()
    (source, queue), *_ = one_queue_per_node(own_cluster, namespace).items()
    async with opened(own_cluster.url, namespace) as broker:
        await broker.inspector.queue(queue)
        added = await asyncio.to_thread(own_cluster.add_node)
        await asyncio.to_thread(move_slot, own_cluster, slot_of(namespace, queue), source, added)
        await publish(broker, queue, "a")
        assert job_ids(added, namespace, queue) == {b"a"}


@looped
async def test_an_error_names_the_node(cluster: Cluster) -> None:
    namespace = new_namespace()
    (node, queue), *_ = one_queue_per_node(cluster, namespace).items()
    async with opened(cluster.url, namespace) as broker:
        with pytest.raises(BrokerError, match=rf"node 127\.0\.0\.1:{node.port}"):
            await broker._calls.call(queue, "HGET", queue_keys(namespace, queue)["stream"])
