"""Topics that another program changes: destroyed consumer groups, flushed servers, foreign entries, foreign groups."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from millstream.backends.redis import RedisBroker
from millstream.backends.redis.keys import GROUP, queue_keys, topic_keys
from millstream.broker import Position, Post, Receipt
from millstream.broker.values import BEGINNING, END, UNKNOWN
from millstream.errors import LeaseLost
from millstream.model.address import Address
from millstream.model.outcome import Kind
from millstream.testing.backend import PATIENCE, BackendUnderTest, ids
from millstream.testing.topic import TOPIC, A, B, begin, claim, emit, emit_serials, end, finish, group_state, state, take

Story = Callable[[BackendUnderTest, "Log"], Coroutine[Any, Any, None]]


class Log:
    """The log as another program sees it."""

    def __init__(self, broker: RedisBroker, namespace: str) -> None:
        self.key = topic_keys(namespace, TOPIC)["log"]
        self.namespace = namespace
        self.call = broker._calls.node(None).commands.call

    async def destroy_consumer_group(self, group: str) -> None:
        assert await self.call("XGROUP", "DESTROY", self.key, group) == 1

    async def write(self, *fields: str) -> None:
        await self.call("XADD", self.key, "*", *fields)


@pytest.fixture(params=["valkey_server", "redis_server"])
def tell(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """Runs a story on each server."""
    url = request.getfixturevalue(request.param)

    def play(story: Story) -> None:
        namespace = f"test-{uuid.uuid4().hex}"

        async def main() -> None:
            async with asyncio.timeout(PATIENCE), BackendUnderTest(lambda: RedisBroker(url, namespace=namespace)) as backend:
                assert isinstance(backend.broker, RedisBroker)
                await story(backend, Log(backend.broker, namespace))

        asyncio.run(main())

    return play


Tell = Callable[[Story], None]


# -- destroyed consumer groups and flushed servers -------------------------------------------------------------------------


def test_a_group_whose_consumer_group_was_destroyed_continues_at_its_stored_position(
    tell: Tell, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", "3", "4")
        await end(backend, "a", await take(backend, "a", 2))
        await take(backend, "a", 1)
        backend.at(2)
        await claim(backend, "b", 0)
        noted = (await take(backend, "b", 2))[-1].ref.decode().removeprefix("L")
        await log.destroy_consumer_group("a")
        await emit(backend, "5")
        assert ids(await take(backend, "a")) == ["3", "4", "5"]
        assert ids(await take(backend, "b")) == ["3", "4", "5"]
        (report,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert f"'a' of topic {TOPIC!r}" in report.getMessage() and noted in report.getMessage()

    tell(story)


def test_events_stay_in_the_log_for_a_group_whose_consumer_group_was_destroyed(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", "3")
        await log.destroy_consumer_group("a")
        await finish(backend, "b")
        for second in (2, 4):
            backend.at(second)
            await claim(backend, "b")
        assert ids(await take(backend, "a")) == ["1", "2", "3"]

    tell(story)


def test_a_group_that_started_at_the_end_continues_there_after_its_consumer_group_was_destroyed(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await emit(backend, "1")
        await begin(backend, "a", start=END)
        await log.destroy_consumer_group("a")
        await emit(backend, "2")
        assert ids(await take(backend, "a")) == ["2"]

    tell(story)


def test_every_group_reads_a_deleted_log_from_the_beginning_after_the_clock_was_set_back(
    tell: Tell, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        backend.at(10)
        await begin(backend, "a", "b")
        await emit(backend, "1", "2")
        for group in ("a", "b"):
            await finish(backend, group)
        backend.at(12)
        await claim(backend, "a")
        await log.call("DEL", log.key)
        backend.at(0)
        await emit(backend, "3", "4")
        assert await finish(backend, "a") == ["3", "4"]
        backend.at(2)
        await claim(backend, "a")
        assert await finish(backend, "b") == ["3", "4"]
        said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert ["continues from the beginning" in each for each in said] == [True, True]

    tell(story)


@pytest.mark.parametrize("to", [END, "9000000000000-0"])
def test_a_group_moved_forward_receives_its_held_events_again_if_its_consumer_group_is_destroyed(tell: Tell, to: str) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", keep_count=10)
        await emit(backend, "1", "2", "3", "4", "5")
        one, *_ = await take(backend, "a", 3)
        await end(backend, "a", [one])
        await backend.broker.seek(A, to)
        await log.destroy_consumer_group("a")
        assert ids(await take(backend, "a")) == ["2", "3", "4", "5"]

    tell(story)


def test_a_claim_that_recreates_a_destroyed_consumer_group_takes_retries_too(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        await backend.join("left", queue=A)
        await emit(backend, "retried", "orphaned")
        retried, orphaned = await take(backend, "a")
        await end(backend, "a", [retried, orphaned], Kind.RETRY)
        await backend.take("left", 1, queue=A)
        await backend.broker.leave(A, "left")
        backend.at(2)
        await claim(backend, "a", 0)
        await log.destroy_consumer_group("a")
        assert sorted(ids(await take(backend, "a"))) == ["orphaned", "retried"]

    tell(story)


def test_a_group_whose_consumer_group_was_destroyed_can_be_moved(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        await emit(backend, "1", "2")
        await take(backend, "a")
        await log.destroy_consumer_group("a")
        assert await backend.broker.seek(A, BEGINNING)
        assert ids(await take(backend, "a")) == ["1", "2"]

    tell(story)


def test_a_group_whose_consumer_group_was_destroyed_is_listed(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        await emit(backend, "1")
        position = (await group_state(backend, "a")).position
        await log.destroy_consumer_group("a")
        seen = await group_state(backend, "a")
        assert (seen.position, seen.lag, seen.consumers) == (position, None, 1)

    tell(story)


def test_a_consumer_can_join_again_after_a_flush(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2")
        held = await take(backend, "a")
        await log.call("FLUSHALL")
        await emit(backend, "3")
        with pytest.raises(LeaseLost):
            await end(backend, "a", held)
        with pytest.raises(LeaseLost):
            await claim(backend, "a")
        assert await backend.broker.renew(B, {"b": 30.0}) == {"b"}
        await backend.join("a", queue=A)
        assert ids(await take(backend, "a")) == ["3"]

    tell(story)


async def names_of_groups(backend: BackendUnderTest) -> list[str]:
    return [group.name for group in (await state(backend)).groups]


@pytest.mark.parametrize("others_first", [True, False])
def test_the_first_join_after_a_flush_restores_everything_the_broker_knew_of_the_topic(tell: Tell, others_first: bool) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", keep_count=2)
        await begin(backend, "b", start=END)
        await backend.broker.open_topic(TOPIC, {}, followed=True)
        await log.call("FLUSHALL")
        other = await backend.another()
        await other.open_topic(TOPIC, {"a": BEGINNING} if others_first else {})
        await emit(backend, "1", "2", "3")
        await backend.join("a", queue=A)
        assert await finish(backend, "a") == ["1", "2", "3"]
        backend.at(2)
        await claim(backend, "a")
        await backend.join("b", queue=B)
        assert await finish(backend, "b") == ["1", "2", "3"]
        backend.at(4)
        await claim(backend, "a")
        seen = await state(backend)
        assert (seen.length, seen.followed) == (2, True)

    tell(story)


def test_opening_a_topic_after_a_flush_restores_everything_the_broker_knew_of_it(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", start=END)
        await log.call("FLUSHALL")
        await emit(backend, "1")
        await backend.broker.open_topic(TOPIC, {"a": END, "c": END})
        assert [(group.name, group.lag) for group in (await state(backend)).groups] == [("a", 1), ("c", 0)]

    tell(story)


def test_a_removed_group_is_not_restored_after_a_flush(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", "b", "c")
        await (await backend.another()).remove_group(B)
        await backend.broker.leave(A, "a")
        await backend.join("a", queue=A)  # nothing was flushed, so only this group is joined
        assert await names_of_groups(backend) == ["a", "c"]
        await backend.broker.remove_group(B)
        await log.call("FLUSHALL")
        await backend.join("a", queue=A)
        assert await names_of_groups(backend) == ["a", "c"]

    tell(story)


def test_a_prefix_group_is_restored_only_by_the_process_that_declares_it(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await (await backend.another()).open_prefix(TOPIC, "audit", BEGINNING)
        await begin(backend, "a")
        assert await names_of_groups(backend) == ["a", "audit"]
        await log.call("FLUSHALL")
        await backend.join("a", queue=A)
        assert await names_of_groups(backend) == ["a"]

    tell(story)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_a_flush_is_reported_once_per_group_even_if_another_process_restored_it(
    tell: Tell, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", "b")
        await backend.join("letters", queue=A.dead)
        await log.call("FLUSHALL")
        await (await backend.another()).open_topic(TOPIC, {"a": BEGINNING})
        await backend.join("letters", queue=A.dead)
        for again in ("1", "2"):
            await backend.join("a" + again, queue=A)
            await backend.join("b" + again, queue=B)
        said = errors(caplog)
        assert ["was missing" in each for each in said] == [True, True]
        assert f"'a' of topic {TOPIC!r}" in said[0] and f"'b' of topic {TOPIC!r}" in said[1]

    tell(story)


@pytest.mark.parametrize("other", [True, False])
@pytest.mark.parametrize("letters", [True, False])
def test_a_consumer_group_recreated_by_a_join_is_reported(
    tell: Tell, caplog: pytest.LogCaptureFixture, letters: bool, other: bool
) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        address = A.dead if letters else A
        await backend.join("first", queue=address)
        assert errors(caplog) == []
        await log.call("XGROUP", "DESTROY", queue_keys(log.namespace, address)["stream"], GROUP)
        await (await backend.another() if other else backend.broker).join(address, "second", 30)
        await backend.claim("first", queue=address)
        (said,) = errors(caplog)
        assert f"had lost the consumer group of its {'dead letters' if letters else 'retries'}" in said

    tell(story)


def test_joining_a_removed_group_reports_no_loss(tell: Tell, caplog: pytest.LogCaptureFixture) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        await backend.join("letters", queue=A.dead)
        await backend.broker.remove_group(A)
        await backend.join("letters", queue=A.dead)
        await begin(backend, "a")
        assert errors(caplog) == []

    tell(story)


# -- groups by prefix ------------------------------------------------------------------------------------------------------


async def taken_by_prefix(backend: BackendUnderTest, topic: str) -> list[str]:
    address = Address.of_group(topic, "audit")
    await backend.join(f"c-{topic}", queue=address)
    return ids(await backend.take(f"c-{topic}", queue=address))


def test_a_prefix_group_starts_at_its_position_despite_topics_opened_at_the_same_time(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        assert isinstance(backend.broker, RedisBroker)
        other, run = await backend.another(), backend.broker._openings._run
        await other.open_topic("orders.eu", {})
        await emit(backend, "old", topic="orders.eu")

        async def run_and_let_others_open(name: str, *args: Any, **options: Any) -> Any:
            answer = await run(name, *args, **options)
            if name == "declare_prefix":
                await other.open_topic("orders.eu", {})
                await other.open_topic("orders.us", {})
                await other.emit("orders.us", [Post("first", b"first")])
            return answer

        monkeypatch.setattr(backend.broker._openings, "_run", run_and_let_others_open)
        assert await backend.broker.open_prefix("orders.", "audit", END) == ["orders.eu", "orders.us"]
        monkeypatch.undo()
        for topic in ("orders.eu", "orders.us"):
            await emit(backend, "new", topic=topic)
        assert await taken_by_prefix(backend, "orders.eu") == ["new"]
        assert await taken_by_prefix(backend, "orders.us") == ["first", "new"]

    tell(story)


def test_a_removed_prefix_leaves_no_group_despite_topics_opened_at_the_same_time(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        assert isinstance(backend.broker, RedisBroker)
        other, run = await backend.another(), backend.broker._openings._run
        await other.open_topic("orders.eu", {})
        await backend.broker.open_prefix("orders.", "audit", BEGINNING)

        async def run_and_let_others_open(name: str, *args: Any, **options: Any) -> Any:
            answer = await run(name, *args, **options)
            if name == "remove_group":
                for topic in ("orders.eu", "orders.us"):
                    await other.open_topic(topic, {})
            return answer

        monkeypatch.setattr(backend.broker._openings, "_run", run_and_let_others_open)
        assert await backend.broker.remove_prefix("orders.", "audit")
        for topic in ("orders.eu", "orders.us"):
            assert (await other.inspector.topic(topic)).groups == []

    tell(story)


def test_a_prefix_group_receives_every_event_of_topics_opened_after_a_flush(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await backend.broker.open_prefix("orders.", "audit", END)
        await log.call("FLUSHALL")
        await (await backend.another()).open_topic("orders.eu", {})
        await emit(backend, "1", topic="orders.eu")
        assert await backend.broker.open_prefix("orders.", "audit", END) == ["orders.eu"]
        assert await taken_by_prefix(backend, "orders.eu") == ["1"]

    tell(story)


# -- a long log ------------------------------------------------------------------------------------------------------------


def test_consecutive_claims_trim_a_long_log_without_a_pause(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        for first in range(1, 25_000, 1_000):
            await emit_serials(backend, "sender", *range(first, first + 1_000))
        await backend.broker.seek(A, END)
        backend.at(2)
        goes = 1
        while (given := await claim(backend, "a", 0)).next_due == 0:
            goes += 1
        assert (given.next_due, (await state(backend)).length) == (None, 0)
        assert goes > 1

    tell(story)


# -- entries and groups of other programs ----------------------------------------------------------------------------------


def test_foreign_entries_are_delivered_raw_and_do_not_block_events(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1")
        await log.write("user", "7", "name", "Ada")
        await log.write("d", "body", "and", "more")
        backend.run_clock()
        await emit(backend, "2")
        for group in ("a", "b"):
            entries = await take(backend, group)
            assert [entry.body for entry in entries] == [b"1", None, None, b"2"]
            raw = [msgspec.msgpack.decode(entry.raw) for entry in entries[1:3]]
            assert raw == [[b"user", b"7", b"name", b"Ada"], [b"d", b"body", b"and", b"more"]]
            await end(backend, group, entries[1:3], Kind.DEAD, body=b"what was found")
            assert await end(backend, group, entries) == 2

    tell(story)


def test_a_foreign_entry_is_redelivered_after_a_crash(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        await backend.join("next", queue=A)
        await log.write("user", "7")
        await take(backend, "a")
        await backend.broker.leave(A, "a")
        (entry,) = await backend.take("next", queue=A)
        assert (entry.body, entry.crashes, msgspec.msgpack.decode(entry.raw)) == (None, 1, [b"user", b"7"])

    tell(story)


def test_an_event_deleted_while_it_runs_leaves_a_dead_letter_if_its_consumer_dies(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        await backend.join("next", queue=A)
        await emit(backend, "1", "2")
        held = await take(backend, "a")
        await log.call("XDEL", log.key, backend.broker.locate(held[0].ref).entry)
        await backend.broker.leave(A, "a")
        assert ids(await backend.take("next", queue=A)) == ["2"]
        (letter,) = await backend.broker.inspector.dead_letters(A)
        assert letter.reason == "malformed"

    tell(story)


def test_the_group_of_another_program_keeps_the_log_and_cannot_be_removed(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        await log.call("XGROUP", "CREATE", log.key, "theirs", "0")
        await emit(backend, "1")
        await finish(backend, "a")
        backend.at(2)
        await claim(backend, "a")
        assert (await state(backend)).length == 1
        assert not await backend.broker.remove_group(Address.of_group(TOPIC, "theirs"))
        assert not await backend.broker.seek(Address.of_group(TOPIC, "theirs"), END)
        assert [group.name for group in (await state(backend)).groups] == ["a"]
        await log.call("XREADGROUP", "GROUP", "theirs", "c", "NOACK", "STREAMS", log.key, ">")
        backend.at(4)
        await claim(backend, "a")
        assert (await state(backend)).length == 0

    tell(story)


# -- nothing is left behind ------------------------------------------------------------------------------------------------


def test_a_removed_group_leaves_no_key(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", "3")
        dead, retried, last = await take(backend, "a")
        await end(backend, "a", [dead], Kind.DEAD)
        await end(backend, "a", [retried], Kind.RETRY, delay=60)
        await backend.broker.pause(A)
        await backend.join("c", "left", queue=A.dead)  # a consumer, one that leaves messages behind, and a wake-up token
        await backend.broker.resume(A)
        await backend.take("left", queue=A.dead)
        await backend.broker.leave(A.dead, "left")
        await backend.broker.release(A.dead, "c", [e.ref for e in await backend.take("c", queue=A.dead)])
        await end(backend, "a", [last], Kind.DEAD)
        assert [key for key in await log.call("KEYS", f"*{log.namespace}*") if b":g:a:dead:" in key] != []
        assert await backend.broker.remove_group(A)
        keys = await log.call("KEYS", f"*{log.namespace}*")
        assert [key for key in keys if b":g:a:" in key] == []
        assert ids(await take(backend, "b")) == ["1", "2", "3"]

    tell(story)


def test_a_long_log_is_trimmed_in_a_few_claims(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        for n in range(45):
            posts = [Post(f"s-{i}", b"x", serial=i) for i in range(n * 1000 + 1, n * 1000 + 1001)]
            await backend.broker.emit(TOPIC, posts, sender="s")
        await backend.broker.seek(A, END)
        for _ in range(4):
            await claim(backend, "a", 0)
        assert (await state(backend)).length == 0

    tell(story)


# -- followers of a lost or changed log ------------------------------------------------------------------------------------


async def read(backend: BackendUnderTest, after: Position, count: int = 1000) -> tuple[list[str], int, Position]:
    followed = await backend.broker.follow(TOPIC, after, count)
    return ids(followed.entries), followed.missed, followed.position


async def begin_to_follow(backend: BackendUnderTest) -> Position:
    return (await backend.broker.follow(TOPIC, None, 1)).position


@pytest.mark.parametrize("seen_empty", [True, False])
@pytest.mark.parametrize("flushed", [True, False])
def test_a_follower_notices_a_lost_log_and_reads_the_new_one(tell: Tell, flushed: bool, seen_empty: bool) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        at = await begin_to_follow(backend)
        await emit(backend, "1", "2", "3")
        _, _, at = await read(backend, at)
        await log.call(*(("FLUSHALL",) if flushed else ("DEL", log.key)))
        if seen_empty:
            found, missed, at = await read(backend, at)
            assert (found, missed) == ([], UNKNOWN)
        backend.at(1)
        await emit(backend, "4", "5")
        found, missed, at = await read(backend, at)
        assert (found, missed) == (["4", "5"], 0 if seen_empty else UNKNOWN)
        await emit(backend, "6")
        assert (await read(backend, at))[:2] == (["6"], 0)

    tell(story)


def test_a_follower_recognises_a_new_log_that_is_longer_than_the_old_one(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        at = await begin_to_follow(backend)
        await emit(backend, "1")
        _, _, at = await read(backend, at)
        await log.call("DEL", log.key)
        backend.at(1)
        await emit(backend, *"23456789")
        found, missed, at = await read(backend, at, 3)
        assert (found, missed) == (["2", "3", "4"], UNKNOWN)
        assert (await read(backend, at))[:2] == (["5", "6", "7", "8", "9"], 0)

    tell(story)


def test_a_follower_reads_a_flushed_log_from_the_beginning_after_the_clock_was_set_back(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        backend.at(10)
        at = await begin_to_follow(backend)
        await emit(backend, "1")
        _, _, at = await read(backend, at)
        await log.call("FLUSHALL")
        backend.at(0)
        await emit(backend, "2", "3")
        found, missed, at = await read(backend, at)
        assert (found, missed) == (["2", "3"], UNKNOWN)

    tell(story)


def test_a_follower_of_a_deleted_log_misses_an_unknown_number_after_the_clock_was_set_back(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        backend.at(10)
        at = await begin_to_follow(backend)
        await emit(backend, "1")
        _, _, at = await read(backend, at)
        await log.call("DEL", log.key)
        backend.at(0)
        await emit(backend, "2", "3", "4")
        found, missed, at = await read(backend, at)
        assert (found, missed) == ([], UNKNOWN)
        await emit(backend, "5")
        assert (await read(backend, at))[:2] == (["5"], 0)

    tell(story)


def test_a_follower_does_not_reread_a_log_that_lost_its_end(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        at = await begin_to_follow(backend)
        await emit(backend, "1", "2")
        kept = await log.call("DUMP", log.key)
        backend.at(1)
        await emit(backend, "3", "4")
        _, _, at = await read(backend, at)
        await log.call("RESTORE", log.key, 0, kept, "REPLACE")
        found, missed, later = await read(backend, at)
        assert (found, missed) == ([], UNKNOWN)
        backend.at(2)
        await emit(backend, "5", "6", "7")
        assert (await read(backend, later))[:2] == (["5", "6", "7"], 0)
        found, missed, later = await read(backend, at, 1)  # a follower that reads only now
        assert (found, missed) == (["5"], 0)
        found, missed, later = await read(backend, later)
        assert (found, missed) == (["6", "7"], UNKNOWN)

    tell(story)


def test_a_follower_counts_events_deleted_by_another_program_as_missed(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        at = await begin_to_follow(backend)
        await emit(backend, *"123456")
        entries = await log.call("XRANGE", log.key, "-", "+")
        _, _, at = await read(backend, at, 1)
        for number in (2, 3, 5):
            await log.call("XDEL", log.key, entries[number][0])
        found, missed, at = await read(backend, at, 1)
        assert (found, missed) == (["2"], 0)
        assert (await read(backend, at))[:2] == (["5"], 3)

    tell(story)


def test_a_flushed_topic_is_followed_again_after_the_next_follow(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        at = await begin_to_follow(backend)
        await log.call("FLUSHALL")
        await read(backend, at)
        assert await emit(backend, "1", "2", max_length=1) == [Receipt.CREATED] * 2

    tell(story)


def test_a_follower_reads_a_foreign_entry_raw(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        at = await begin_to_follow(backend)
        await log.write("user", "7")
        (entry,) = (await backend.broker.follow(TOPIC, at, 10)).entries
        assert (entry.body, msgspec.msgpack.decode(entry.raw)) == (None, [b"user", b"7"])

    tell(story)


def test_opening_a_prefix_again_transfers_only_new_topics(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        assert isinstance(backend.broker, RedisBroker)
        names = [f"orders.{n:04d}" for n in range(1500)]
        for name in (*names, "other"):
            await backend.broker._openings._run("declare", None, "topics", name)
        run, brought = backend.broker._openings._run, list[str]()

        async def count(name: str, *args: Any, **options: Any) -> Any:
            answer = await run(name, *args, **options)
            if name == "declare_prefix":
                brought.extend(map(bytes.decode, answer[-1]))
            return answer

        known = set(await backend.broker.open_prefix("orders.", "audit", BEGINNING))
        assert known == set(names)
        monkeypatch.setattr(backend.broker._openings, "_run", count)
        assert await backend.broker.open_prefix("orders.", "audit", BEGINNING, known) == []
        assert brought == []
        await (await backend.another()).open_topic("orders.new", {})
        assert await backend.broker.open_prefix("orders.", "audit", BEGINNING, known) == ["orders.new"]
        assert brought == ["orders.new"]
        assert await backend.broker.open_prefix("orders.", "audit", BEGINNING) == [*names, "orders.new"]

    tell(story)
