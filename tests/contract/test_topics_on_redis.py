"""What happens to a topic by other hands: places destroyed, everything flushed, foreign entries, other programs' groups."""

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
    """The log itself, as another program sees it."""

    def __init__(self, broker: RedisBroker, namespace: str) -> None:
        self.key = topic_keys(namespace, TOPIC)["log"]
        self.namespace = namespace
        self.call = broker._commands.call

    async def destroy_place(self, group: str) -> None:
        assert await self.call("XGROUP", "DESTROY", self.key, group) == 1

    async def write(self, *fields: str) -> None:
        await self.call("XADD", self.key, "*", *fields)


@pytest.fixture(params=["valkey_server", "redis_server"])
def tell(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """Plays a story on each server."""
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


# -- a place that was destroyed --------------------------------------------------------------------------------------------


def test_a_group_whose_place_was_destroyed_goes_on_from_its_note(tell: Tell, caplog: pytest.LogCaptureFixture) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", "3", "4")
        await end(backend, "a", await take(backend, "a", 2))
        await take(backend, "a", 1)
        backend.at(2)
        await claim(backend, "b", 0)
        noted = (await take(backend, "b", 2))[-1].ref.decode().removeprefix("L")
        await log.destroy_place("a")
        await emit(backend, "5")
        assert ids(await take(backend, "a")) == ["3", "4", "5"]
        assert ids(await take(backend, "b")) == ["3", "4", "5"]
        (report,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert f"'a' of topic {TOPIC!r}" in report.getMessage() and noted in report.getMessage()

    tell(story)


def test_what_a_group_without_its_place_was_not_given_stays(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", "3")
        await log.destroy_place("a")
        await finish(backend, "b")
        for second in (2, 4):
            backend.at(second)
            await claim(backend, "b")
        assert ids(await take(backend, "a")) == ["1", "2", "3"]

    tell(story)


def test_a_group_that_began_at_the_end_and_lost_its_place_goes_on_there(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await emit(backend, "1")
        await begin(backend, "a", start=END)
        await log.destroy_place("a")
        await emit(backend, "2")
        assert ids(await take(backend, "a")) == ["2"]

    tell(story)


def test_a_deleted_log_whose_clock_went_back_is_given_from_its_beginning_to_every_group(
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
        assert ["goes on from the beginning" in each for each in said] == [True, True]

    tell(story)


@pytest.mark.parametrize("to", [END, "9000000000000-0"])
def test_a_group_that_was_moved_forward_and_loses_its_place_is_given_again_what_it_held(tell: Tell, to: str) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", keep_count=10)
        await emit(backend, "1", "2", "3", "4", "5")
        one, *_ = await take(backend, "a", 3)
        await end(backend, "a", [one])
        await backend.broker.seek(A, to)
        await log.destroy_place("a")
        assert ids(await take(backend, "a")) == ["2", "3", "4", "5"]

    tell(story)


def test_a_claim_that_finds_its_place_destroyed_takes_retries_too(tell: Tell) -> None:
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
        await log.destroy_place("a")
        assert sorted(ids(await take(backend, "a"))) == ["orphaned", "retried"]

    tell(story)


def test_a_group_without_its_place_can_be_moved(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        await emit(backend, "1", "2")
        await take(backend, "a")
        await log.destroy_place("a")
        assert await backend.broker.seek(A, BEGINNING)
        assert ids(await take(backend, "a")) == ["1", "2"]

    tell(story)


def test_a_group_without_its_place_is_seen(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        await emit(backend, "1")
        position = (await group_state(backend, "a")).position
        await log.destroy_place("a")
        seen = await group_state(backend, "a")
        assert (seen.position, seen.lag, seen.consumers) == (position, None, 1)

    tell(story)


def test_after_everything_was_flushed_a_consumer_joins_again_and_goes_on(tell: Tell) -> None:
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
def test_after_everything_was_flushed_who_joins_first_makes_all_it_knew_of_the_topic(tell: Tell, others_first: bool) -> None:
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


def test_after_everything_was_flushed_who_opens_the_topic_again_makes_all_it_knew_of_it(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", start=END)
        await log.call("FLUSHALL")
        await emit(backend, "1")
        await backend.broker.open_topic(TOPIC, {"a": END, "c": END})
        assert [(group.name, group.lag) for group in (await state(backend)).groups] == [("a", 1), ("c", 0)]

    tell(story)


def test_a_group_that_was_removed_is_not_made_again_with_the_others(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", "b", "c")
        await (await backend.another()).remove_group(B)
        await backend.broker.leave(A, "a")
        await backend.join("a", queue=A)  # nothing was flushed: it concerns this group alone
        assert await names_of_groups(backend) == ["a", "c"]
        await backend.broker.remove_group(B)
        await log.call("FLUSHALL")
        await backend.join("a", queue=A)
        assert await names_of_groups(backend) == ["a", "c"]

    tell(story)


def test_a_group_by_prefix_that_others_declare_is_theirs_to_make_again(tell: Tell) -> None:
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


def test_what_was_flushed_is_told_once_of_each_group_also_if_others_made_it_first(
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
        assert ["was gone" in each for each in said] == [True, True]
        assert f"'a' of topic {TOPIC!r}" in said[0] and f"'b' of topic {TOPIC!r}" in said[1]

    tell(story)


@pytest.mark.parametrize("other", [True, False])
@pytest.mark.parametrize("letters", [True, False])
def test_a_consumer_group_that_a_join_makes_again_is_told(
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
        assert f"had lost the consumer group of {'its dead letters' if letters else 'what it tries again'}" in said

    tell(story)


def test_a_group_that_was_removed_and_is_joined_anew_was_not_lost(tell: Tell, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_prefix_begins_where_it_says_also_if_others_open_topics_at_that_moment(
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


def test_a_prefix_that_is_removed_leaves_no_group_also_if_others_open_topics_at_that_moment(
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


def test_a_prefix_that_was_flushed_gets_all_of_the_topics_that_came_since(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await backend.broker.open_prefix("orders.", "audit", END)
        await log.call("FLUSHALL")
        await (await backend.another()).open_topic("orders.eu", {})
        await emit(backend, "1", topic="orders.eu")
        assert await backend.broker.open_prefix("orders.", "audit", END) == ["orders.eu"]
        assert await taken_by_prefix(backend, "orders.eu") == ["1"]

    tell(story)


# -- a long log ------------------------------------------------------------------------------------------------------------


def test_what_one_go_cannot_remove_from_a_long_log_the_next_claims_remove_without_a_pause(tell: Tell) -> None:
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


# -- foreign hands ---------------------------------------------------------------------------------------------------------


def test_foreign_entries_come_as_raw_ones_and_the_rest_goes_on(tell: Tell) -> None:
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


def test_a_foreign_entry_survives_a_crash(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a")
        await backend.join("next", queue=A)
        await log.write("user", "7")
        await take(backend, "a")
        await backend.broker.leave(A, "a")
        (entry,) = await backend.take("next", queue=A)
        assert (entry.body, entry.crashes, msgspec.msgpack.decode(entry.raw)) == (None, 1, [b"user", b"7"])

    tell(story)


def test_an_event_that_was_deleted_while_it_was_held_leaves_a_letter_if_its_holder_dies(tell: Tell) -> None:
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


def test_the_group_of_another_program_holds_the_log_and_is_not_ours_to_remove(tell: Tell) -> None:
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


# -- what is left behind ---------------------------------------------------------------------------------------------------


def test_a_removed_group_leaves_no_key(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", "3")
        dead, retried, last = await take(backend, "a")
        await end(backend, "a", [dead], Kind.DEAD)
        await end(backend, "a", [retried], Kind.RETRY, delay=60)
        await backend.broker.pause(A)
        await backend.join("c", "left", queue=A.dead)  # a consumer of the dead letters, one that left some, and a token
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


# -- those who follow, when the log is not what it was ---------------------------------------------------------------------


async def read(backend: BackendUnderTest, after: Position, count: int = 1000) -> tuple[list[str], int, Position]:
    followed = await backend.broker.follow(TOPIC, after, count)
    return ids(followed.entries), followed.missed, followed.position


async def begin_to_follow(backend: BackendUnderTest) -> Position:
    return (await backend.broker.follow(TOPIC, None, 1)).position


@pytest.mark.parametrize("seen_empty", [True, False])
@pytest.mark.parametrize("flushed", [True, False])
def test_after_the_log_was_lost_who_follows_is_told_and_reads_the_new_one(tell: Tell, flushed: bool, seen_empty: bool) -> None:
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


def test_a_new_log_that_is_longer_than_the_old_one_is_told_from_it(tell: Tell) -> None:
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


def test_a_flushed_log_whose_clock_went_back_is_read_from_its_beginning(tell: Tell) -> None:
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


def test_a_deleted_log_whose_clock_went_back_is_a_gap_that_nobody_can_count(tell: Tell) -> None:
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


def test_a_log_that_lost_its_end_is_not_read_again(tell: Tell) -> None:
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
        found, missed, later = await read(backend, at, 1)  # one who looks only now
        assert (found, missed) == (["5"], 0)
        found, missed, later = await read(backend, later)
        assert (found, missed) == (["6", "7"], UNKNOWN)

    tell(story)


def test_who_follows_counts_what_another_program_deleted(tell: Tell) -> None:
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


def test_a_flushed_topic_is_known_to_be_followed_once_someone_has_read_on(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        at = await begin_to_follow(backend)
        await log.call("FLUSHALL")
        await read(backend, at)
        assert await emit(backend, "1", "2", max_length=1) == [Receipt.CREATED] * 2

    tell(story)


def test_a_foreign_entry_is_read_by_who_follows_as_a_raw_one(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, log: Log) -> None:
        at = await begin_to_follow(backend)
        await log.write("user", "7")
        (entry,) = (await backend.broker.follow(TOPIC, at, 10)).entries
        assert (entry.body, msgspec.msgpack.decode(entry.raw)) == (None, [b"user", b"7"])

    tell(story)


def test_looking_for_topics_again_brings_only_what_is_new(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
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
