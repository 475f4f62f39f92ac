"""The findings of `millstream doctor`: in the state that the server reports, and in the consistency of queues and groups."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from millstream.backends.embedded import ensure_server
from millstream.backends.redis import RedisBroker, contents, doctor
from millstream.backends.redis.keys import GROUP, queue_keys
from millstream.broker import Finding, GroupState, OrderRules, Post, TopicState, WorkerInfo
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter
from millstream.model.message import ErrorNote, Message, encode_message
from millstream.model.outcome import Kind, Outcome
from tests.integration.cli.test_cli_commands import NO_ARGUMENTS

HEALTHY = {"aof_enabled": "1", "aof_last_write_status": "ok", "maxmemory_policy": "noeviction", "maxmemory": "0"}


def health(finding: Finding) -> str:
    assert bool(finding.way_out) == (finding.health != "ok"), finding
    return finding.health


@pytest.mark.parametrize(
    ("info", "config", "expected"),
    [
        ({}, {"appendfsync": "everysec"}, "ok"),
        ({}, {"appendfsync": "always"}, "ok"),
        ({}, {}, "ok"),
        ({}, {"appendfsync": "no"}, "warn"),
        ({"aof_last_write_status": "err"}, {}, "bad"),
        ({"aof_enabled": "0"}, {"save": "3600 1"}, "warn"),
        ({"aof_enabled": "0"}, {"save": ""}, "warn"),
        ({"aof_enabled": "0", "rdb_last_bgsave_status": "err"}, {"save": "3600 1"}, "bad"),
    ],
)
def test_persistence_settings_are_rated(info: dict[str, str], config: dict[str, str], expected: str) -> None:
    assert health(doctor.persistence(HEALTHY | info, config)) == expected


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, "ok"),
        ({"maxmemory_policy": "allkeys-lru"}, "warn"),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": "1000"}, "bad"),
        ({"maxmemory_policy": "allkeys-lru", "evicted_keys": "3"}, "bad"),
    ],
)
def test_the_eviction_policy_is_rated(info: dict[str, str], expected: str) -> None:
    assert health(doctor.eviction(HEALTHY | info, {})) == expected


@pytest.mark.parametrize(
    ("used", "limit", "expected"), [(10, 100, "ok"), (80, 100, "warn"), (95, 100, "bad"), (100, 100, "bad"), (10, 0, "ok")]
)
def test_memory_use_and_the_number_of_connections_are_rated(used: int, limit: int, expected: str) -> None:
    assert health(doctor.memory({"used_memory": str(used), "maxmemory": str(limit)}, {})) == expected
    assert health(doctor.connections({"connected_clients": str(used), "maxclients": str(limit)}, {})) == expected


def test_refused_connections_are_reported() -> None:
    assert health(doctor.connections({"connected_clients": "1", "maxclients": "9", "rejected_connections": "2"}, {})) == "warn"


def test_a_replica_is_reported_as_bad() -> None:
    assert health(doctor.server({"redis_version": "7.2.0", "role": "slave"})) == "bad"
    assert health(doctor.server({"redis_version": "7.2.0", "role": "master"})) == "ok"


def group(**numbers: Any) -> GroupState:
    nothing: dict[str, Any] = {"ready": 0, "running": 0, "scheduled": 0, "dead": 0, "paused": False, "consumers": 0}
    return GroupState("g", "0-0", 0, **(nothing | numbers))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], ["warn"]),
        ([group()], ["ok"]),
        ([group(ready=3, running=1, consumers=1), group()], ["ok"]),
        ([group(ready=3), group(scheduled=1)], ["warn", "warn"]),
        ([group(ready=3, paused=True, consumers=1)], ["warn"]),
        ([group(dead=1, ready=1)], ["warn", "warn"]),
    ],
)
def test_the_groups_of_a_topic_are_rated(groups: list[GroupState], expected: list[str]) -> None:
    assert [health(finding) for finding in contents.topic(TopicState("t", 5, 1, {}, groups))] == expected


def test_an_empty_topic_does_not_need_a_group() -> None:
    assert [health(finding) for finding in contents.topic(TopicState("t", 0, 0, {}, []))] == ["ok"]
    assert [health(finding) for finding in contents.topic(TopicState("t", 5, 0, {}, [], followed=True))] == ["ok"]


# -- the consistency of a queue ----------------------------------------------------------------------------------------------

Harm = Callable[[Redis, dict[str, str]], Awaitable[Any]]


async def trimmed(server: Redis, keys: dict[str, str]) -> None:
    await server.xtrim(keys["stream"], maxlen=1, approximate=False)


async def unscheduled(server: Redis, keys: dict[str, str]) -> None:
    await server.zrem(keys["due"], "later")


async def letter_deleted(server: Redis, keys: dict[str, str]) -> None:
    await server.xtrim(keys["dead"], maxlen=0, approximate=False)


async def foreign(server: Redis, keys: dict[str, str]) -> None:
    await server.xadd(keys["stream"], {"not": "ours"})


async def leases_lost(server: Redis, keys: dict[str, str]) -> None:
    await server.delete(keys["leases"])


async def group_lost(server: Redis, keys: dict[str, str]) -> None:
    await server.xgroup_destroy(keys["stream"], GROUP)


async def paused(server: Redis, keys: dict[str, str]) -> None:
    await server.hset(keys["meta"], "paused", "1")


async def lease_passed(server: Redis, keys: dict[str, str]) -> None:
    await server.zadd(keys["leases"], {"c": 5.0})


async def lapsed(server: Redis, keys: dict[str, str]) -> None:
    await server.delete(keys["leases"])
    await server.sadd(keys["lapsed"], "c")


async def nothing(server: Redis, keys: dict[str, str]) -> None:
    pass


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (nothing, [("ok", "3 ready or running, 1 scheduled, 1 lease")]),
        (trimmed, [("bad", "2 jobs in the index are missing: ")]),
        (unscheduled, [("bad", "1 scheduled job without a due time: later")]),
        (foreign, [("warn", "1 entry missing in the index")]),
        (letter_deleted, [("bad", "1 job in the index is missing: dead")]),
        (paused, [("warn", "paused, with 4 jobs")]),
        (lease_passed, [("warn", "4 jobs waiting, but no worker serves this queue")]),
        (group_lost, [("warn", "its consumer group is missing")]),
        (
            leases_lost,
            [
                ("bad", "1 job held by consumer c, which has no lease and is not marked as lapsed"),
                ("warn", "4 jobs waiting, but no worker serves this queue"),
            ],
        ),
        (
            lapsed,
            [("warn", "1 job still held by lapsed consumers"), ("warn", "4 jobs waiting, but no worker serves this queue")],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_inconsistency_of_a_queue_is_found(embedded_url: str, harm: Harm, expected: list[tuple[str, str]]) -> None:
    findings = asyncio.run(examine(embedded_url, harm))
    assert len(findings) == len(expected)
    for finding, (how, what) in zip(findings, expected, strict=True):
        assert (finding.check, health(finding)) == ("queue q", how)
        assert finding.found.startswith(what)


async def examine(url: str, harm: Harm) -> list[Finding]:
    """Return the findings about a queue with three ready jobs, one of them running, and a scheduled job, after damaging it."""
    address = ensure_server(url.removeprefix("embedded://"))
    namespace = f"test-{secrets.token_hex(6)}"
    broker = RedisBroker(address, namespace=namespace)
    try:
        await broker.declare(Address("q"))
        await broker.join(Address("q"), "c", 60.0)
        if harm is letter_deleted:
            await die(broker)
        await broker.publish(Address("q"), [post(name) for name in ("a", "b", "c")])
        await broker.publish(Address("q"), [post("later", delay=60.0)])
        await broker.claim(Address("q"), "c", 1)
        async with Redis.from_url(address) as server:
            await harm(server, queue_keys(namespace, Address("q")))
        return [finding for finding in await broker.inspector.examine() if finding.check == "queue q"]
    finally:
        await broker.close()


async def die(broker: RedisBroker) -> None:
    await broker.publish(Address("q"), [post("dead")])
    (entry,) = (await broker.claim(Address("q"), "c", 1)).entries
    letter = DeadLetter("rejected", ErrorNote("Reject", "no"), 1, 0, 17)
    await broker.settle(
        Address("q"), "c", [Outcome(Kind.DEAD, entry.ref, "dead", body=entry.body or b"", task="t", letter=letter)]
    )


def post(job_id: str, **fields: Any) -> Post:
    return Post(job_id, encode_message(Message(job_id, "t", NO_ARGUMENTS, 17)), "t", **fields)


# -- the consistency of a group ----------------------------------------------------------------------------------------------


async def place_lost(server: Redis, keys: dict[str, str]) -> None:
    await server.xgroup_destroy(keys["log"], "g")


async def retry_unscheduled(server: Redis, keys: dict[str, str]) -> None:
    await server.zrem(keys["due"], "retried")


async def retry_deleted(server: Redis, keys: dict[str, str]) -> None:
    await server.hdel(keys["held"], "retried")
    await server.zrem(keys["due"], "retried")


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (nothing, []),
        (retry_unscheduled, [("bad", "1 scheduled event without a due time: retried")]),
        (retry_deleted, [("bad", "1 event in the index is missing: retried")]),
        (place_lost, [("warn", "its position in the log is missing")]),
        (
            leases_lost,
            [
                ("bad", "1 event held by consumer c, which has no lease and is not marked as lapsed"),
                ("warn", "3 events waiting, but no worker serves this group"),
            ],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_inconsistency_of_a_group_is_found(embedded_url: str, harm: Harm, expected: list[tuple[str, str]]) -> None:
    async def scenario() -> list[Finding]:
        address = ensure_server(embedded_url.removeprefix("embedded://"))
        namespace = f"test-{secrets.token_hex(6)}"
        broker = RedisBroker(address, namespace=namespace)
        try:
            await broker.join(Address("t/g"), "c", 60.0)
            await broker.emit("t", [post(name) for name in ("retried", "running", "ready")])
            retried, _ = (await broker.claim(Address("t/g"), "c", 2)).entries
            retry = Outcome(Kind.RETRY, retried.ref, "retried", body=retried.body or b"", delay=60.0)
            await broker.settle(Address("t/g"), "c", [retry])
            async with Redis.from_url(address) as server:
                await harm(server, queue_keys(namespace, Address("t/g")))
            return [finding for finding in await broker.inspector.examine() if finding.check.startswith("group")]
        finally:
            await broker.close()

    findings = asyncio.run(scenario())
    assert [(finding.check, health(finding)) for finding in findings] == [("group g of topic t", how) for how, _ in expected]
    for finding, (_, what) in zip(findings, expected, strict=True):
        assert finding.found.startswith(what)


def test_a_job_with_a_missing_entry_becomes_a_dead_letter_when_a_worker_claims(embedded_url: str) -> None:
    async def scenario() -> list[str]:
        broker = RedisBroker(ensure_server(embedded_url.removeprefix("embedded://")), namespace=f"test-{secrets.token_hex(6)}")
        keys = broker._names(Address("q"))
        try:
            await broker.declare(Address("q"))
            await broker.publish(Address("q"), [post("ready")])
            await broker.publish(Address("q"), [post("later", delay=60.0)])
            await broker._calls.node(None).commands.call("DEL", keys["stream"], keys["held"], keys["due"])
            for job_id in ("ready", "later"):
                assert await broker.inspector.job(Address("q"), job_id) is None
            await broker.join(Address("q"), "worker", 30.0)
            while (await broker.claim(Address("q"), "worker", 1)).next_due == 0:
                pass
            await broker.leave(Address("q"), "worker")
            assert sorted(letter.id for letter in await broker.inspector.dead_letters(Address("q"))) == ["later", "ready"]
            return [f.health for f in await broker.inspector.examine() if f.check == "queue q"]
        finally:
            await broker.close()

    assert "bad" not in asyncio.run(scenario())


def test_dead_letters_are_a_warning_unless_a_worker_handles_them(embedded_url: str) -> None:
    async def scenario() -> list[list[tuple[str, str]]]:
        broker = RedisBroker(ensure_server(embedded_url.removeprefix("embedded://")), namespace=f"test-{secrets.token_hex(6)}")
        dead = Address("t/g").dead

        async def look() -> list[tuple[str, str]]:
            return [(f.health, f.found) for f in await broker.inspector.examine() if "topic t" in f.check]

        try:
            await broker.join(Address("t/g"), "c", 60.0)
            await broker.emit("t", [post(name) for name in ("a", "b", "c")])
            entries = (await broker.claim(Address("t/g"), "c", 3)).entries
            letter = DeadLetter("rejected", ErrorNote("Reject", "no"), 1, 0, 17)
            ends = [Outcome(Kind.DEAD, e.ref, name, body=b"", letter=letter) for e, name in zip(entries, "abc", strict=True)]
            await broker.settle(Address("t/g"), "c", ends)
            seen = [await look()]
            await broker.join(dead, "c", 60.0)
            seen.append(await look())
            held = (await broker.claim(dead, "c", 2)).entries
            await broker.settle(dead, "c", [Outcome(Kind.DONE, held[0].ref, "a"), Outcome(Kind.DEAD, held[1].ref, "b")])
            seen.append(await look())
            await broker.leave(dead, "c")
            return [*seen, await look()]
        finally:
            await broker.close()

    unserved, served, left, gone = asyncio.run(scenario())
    assert unserved == [("warn", "3 events dead")]
    assert [health for health, _ in served] == ["ok"]
    assert left == [("warn", "1 event dead")]
    assert gone == [("warn", "2 events dead")]


# -- shards, keys, and jobs that no worker can run -----------------------------------------------------------------------------


async def examined(url: str, prepare: Callable[[RedisBroker], Awaitable[None]]) -> dict[str, list[tuple[str, str]]]:
    """Return the findings about queues and topics, by check."""
    broker = RedisBroker(ensure_server(url.removeprefix("embedded://")), namespace=f"test-{secrets.token_hex(6)}")
    try:
        await prepare(broker)
        found: dict[str, list[tuple[str, str]]] = {}
        for finding in await broker.inspector.examine():
            found.setdefault(finding.check, []).append((health(finding), finding.found))
        return found
    finally:
        await broker.close()


async def stop_key(broker: RedisBroker, address: Address) -> None:
    """The first of two messages of one key dies and stops the key, so the second dies too."""
    await broker.join(address, "c", 60.0, order=OrderRules(stop=True))
    (entry,) = (await broker.claim(address, "c", 1)).entries
    letter = DeadLetter("rejected", ErrorNote("Reject", "no"), 1, 0, 17)
    await broker.settle(address, "c", [Outcome(Kind.DEAD, entry.ref, "1", body=entry.body or b"", task="t", letter=letter)])
    await broker.claim(address, "c", 1)


def test_the_groups_of_an_ordered_topic_are_checked_in_all_shards(embedded_url: str) -> None:
    async def prepare(broker: RedisBroker) -> None:
        await broker.note_shards(Address("t/"), 2)
        for shard in ("t:0", "t:1"):
            await broker.open_topic(shard, {"g": "beginning", "h": "beginning"})
        await broker.emit("t:1", [post(name, key=b"ann") for name in ("1", "2")], shards=2)
        await stop_key(broker, Address("t:1/g"))

    found = asyncio.run(examined(embedded_url, prepare))
    assert found["group g of topic t"] == [("warn", "1 key is stopped"), ("warn", "2 events dead")]
    assert found["group h of topic t"] == [("warn", "2 events waiting, but no worker serves this group")]


def test_a_queue_is_checked_in_all_shards(embedded_url: str) -> None:
    async def prepare(broker: RedisBroker) -> None:
        await broker.note_shards(Address("q"), 2)
        for shard in Address("q").shards(2):
            await broker.declare(shard)
        await broker.publish(Address("q:1"), [post(name, key=b"ann") for name in ("1", "2")], shards=2)
        await stop_key(broker, Address("q:1"))
        await broker._calls.node(None).commands.call("HSET", broker._names(Address("q:0"))["index"], "lost", "1-1")

    found = asyncio.run(examined(embedded_url, prepare))
    assert found["queue q:0"] == [("bad", "1 job in the index is missing: lost")]
    assert found["queue q"] == [("warn", "1 key is stopped"), ("warn", "2 dead jobs")]


def test_a_job_of_a_task_that_no_worker_knows_is_reported(embedded_url: str) -> None:
    async def prepare(broker: RedisBroker) -> None:
        await broker.join(Address("q"), "w.1", 60.0)
        await broker.publish(Address("q"), [post(name) for name in ("a", "b")])
        await broker.register(WorkerInfo("w", "host", 1, "0", ["q"], 0.0, {}, tasks={"other": False}), 60.0)

    found = asyncio.run(examined(embedded_url, prepare))
    assert found["queue q"] == [("warn", "job a is not running: no worker of queue 'q' knows task 't': w knows other")]


def test_a_queue_whose_workers_are_all_busy_is_ok_and_the_finding_says_so(embedded_url: str) -> None:
    async def prepare(broker: RedisBroker) -> None:
        await broker.join(Address("q"), "w.1", 60.0)
        await broker.publish(Address("q"), [post("a")])
        await broker.register(WorkerInfo("w", "host", 1, "0", ["q"], 0.0, {}, slots=(1, 1), running=(1, 0), full=["q"]), 60.0)

    ((how, what),) = asyncio.run(examined(embedded_url, prepare))["queue q"]
    assert how == "ok" and what.endswith("at its limit: w runs 1 of 1 coroutines and 0 of 1 threads")
