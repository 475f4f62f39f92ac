"""Promises about stopped keys: a dead message stops its key, and later messages of the key die until it is cleared."""

from __future__ import annotations

from millstream.broker import Entry, OrderRules, Post, StoppedKey
from millstream.model.address import Address
from millstream.model.message import ErrorNote
from millstream.model.outcome import Kind
from millstream.testing.backend import LETTER, START, BackendUnderTest, Promises, cause, ids, promise
from millstream.testing.keyed import KEY, blocked, dead, finish_all, retry, send, take_all


async def begin(backend: BackendUnderTest, *names: str, key: bytes = KEY) -> Entry:
    """Publish messages of one key and claim the first. If it dies, its key stops (``OrderRules(stop=True)``)."""
    await backend.broker.join(backend.queue, "c", 1e6, order=OrderRules(stop=True))
    await send(backend, *names, key=key)
    (entry,) = await backend.take("c")
    return entry


async def stop(backend: BackendUnderTest, *names: str, key: bytes = KEY) -> None:
    """Publish messages of one key. The first of them dies, which stops the key."""
    entry = await begin(backend, *names, key=key)
    assert await backend.settle("c", [entry], Kind.DEAD, body=f"{names[0]}#again".encode()) == 1


class StoppingPromises(Promises):
    @promise()
    async def test_a_dead_message_stops_its_key_and_blocked_messages_die_in_order(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1", "2", "3")
        assert await take_all(backend) == []
        assert await dead(backend) == ["1", "2", "3"]
        assert await dead(backend, "stopped") == ["2", "3"]
        assert (await blocked(backend), await backend.status("2")) == ([], "dead")

    @promise()
    async def test_later_messages_of_a_stopped_key_die(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1")
        await send(backend, "2", "3")
        assert await take_all(backend) == []
        assert await dead(backend, "stopped") == ["2", "3"]

    @promise()
    async def test_a_scheduled_message_of_a_stopped_key_dies_when_it_is_due(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1")
        await send(backend, "2", delay=5)
        await take_all(backend)
        assert await dead(backend, "stopped") == []
        backend.at(5)
        assert await take_all(backend) == []
        assert await dead(backend, "stopped") == ["2"]

    @promise()
    async def test_messages_of_other_keys_or_without_a_key_still_run(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1", key=b"a")
        await send(backend, "ab", key=b"ab")
        await send(backend, "empty", key=b"")
        await send(backend, "none", key=None)
        assert ids(await take_all(backend)) == ["ab", "empty", "none"]

    @promise()
    async def test_without_the_stop_rule_the_next_message_runs(self, backend: BackendUnderTest) -> None:
        await backend.broker.join(backend.queue, "c", 30, order=OrderRules(stop=False))
        await send(backend, "1", "2")
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        assert ids(await backend.take("c")) == ["2"]
        assert await backend.broker.inspector.stopped_keys(backend.queue) == []

    @promise()
    async def test_a_dead_message_without_a_key_stops_nothing(self, backend: BackendUnderTest) -> None:
        await backend.broker.join(backend.queue, "c", 30, order=OrderRules(stop=True))
        await send(backend, "x", key=None)
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        assert await backend.broker.inspector.stopped_keys(backend.queue) == []
        await send(backend, "y", key=None)
        await send(backend, "z", key=b"")
        assert ids(await backend.take("c")) == ["y", "z"]

    @promise()
    async def test_only_a_dead_message_stops_its_key(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2", "3", "4")
        await backend.settle("c", [first])
        await backend.settle("c", await backend.take("c"), Kind.EXPIRED)
        (third,) = await backend.take("c")
        await retry(backend, third, delay=0)
        assert await backend.broker.inspector.stopped_keys(backend.queue) == []
        assert await finish_all(backend) == ["3", "4"]

    @promise()
    async def test_dead_letters_of_messages_behind_a_stopped_key_have_the_reason_stopped(
        self, backend: BackendUnderTest
    ) -> None:
        await stop(backend, "1", "2")
        await send(backend, "3")
        await take_all(backend)
        root, *letters = await backend.broker.inspector.dead_letters(backend.queue)
        assert (root.id, cause(root), root.key) == ("1", LETTER, KEY)
        for name, letter in zip(("2", "3"), letters, strict=True):
            assert (letter.reason, letter.error.type, letter.error.traceback) == ("stopped", "OrderError", "")
            assert isinstance(letter.error, ErrorNote) and letter.error.message
            assert (letter.attempts, letter.crashes, letter.enqueued_ms) == (0, 0, 0)
            assert (letter.id, letter.task, letter.body, letter.key) == (name, "t", name.encode(), KEY)
        assert (await backend.totals())["dead"] == 3

    # -- inspection --------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_stopped_key_is_listed_with_its_cause_time_and_dead_letters(self, backend: BackendUnderTest) -> None:
        backend.at(3)
        await stop(backend, "1", "2")
        backend.at(4)
        await send(backend, "3")
        await take_all(backend)
        assert await backend.broker.inspector.stopped_keys(backend.queue) == [StoppedKey(KEY, "1", START + 3, waiting=3)]
        state = await backend.broker.inspector.queue(backend.queue)
        assert (state.stopped, state.dead, state.blocked, state.ready) == (1, 3, 0, 0)

    @promise()
    async def test_stopped_keys_are_listed_sorted(self, backend: BackendUnderTest) -> None:
        keys = [b"b", b"", b"a\n", b"\xff", b"a", b"\0"]
        for number, key in enumerate(keys):
            await stop(backend, str(number), key=key)
        assert [stopped.key for stopped in await backend.broker.inspector.stopped_keys(backend.queue)] == sorted(keys)
        assert (await backend.broker.inspector.queue(backend.queue)).stopped == len(keys)

    @promise()
    async def test_without_a_stopped_key_the_list_is_empty(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.inspector.stopped_keys(backend.queue) == []
        assert await backend.broker.inspector.stopped_keys(Address("nobody-used-it")) == []

    @promise()
    async def test_a_key_is_stopped_only_at_its_address(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1")
        await backend.join("d", queue=backend.other_queue)
        assert await backend.broker.inspector.stopped_keys(backend.other_queue) == []
        await backend.broker.publish(backend.other_queue, [_post("own")])
        assert "own" in ids(await backend.take("d", queue=backend.other_queue))

    @promise()
    async def test_a_key_stays_stopped_after_all_consumers_have_left(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1")
        await backend.broker.leave(backend.queue, "c")
        other = await backend.another()
        await other.join(backend.queue, "d", 30)
        await send(backend, "2")
        assert (await other.claim(backend.queue, "d", 10)).entries == []
        assert [key.by for key in await other.inspector.stopped_keys(backend.queue)] == ["1"]

    # -- the rule ----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_the_stop_rule_applies_to_later_consumers_too(self, backend: BackendUnderTest) -> None:
        await backend.broker.join(backend.queue, "c", 30, order=OrderRules(stop=True))
        await backend.broker.leave(backend.queue, "c")
        await backend.join("d")
        await send(backend, "1", "2")
        await backend.settle("d", await backend.take("d"), Kind.DEAD)
        assert await dead(backend, "stopped") == ["2"]

    @promise()
    async def test_the_last_stop_rule_that_was_set_applies(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1")
        await backend.broker.join(backend.queue, "d", 30, order=OrderRules(stop=False))
        await send(backend, "2")
        await send(backend, "a1", "a2", key=b"a")
        await backend.settle("c", await take_all(backend), Kind.DEAD)
        assert ids(await take_all(backend)) == ["a2"]
        assert [(key.key, key.waiting) for key in await backend.broker.inspector.stopped_keys(backend.queue)] == [(KEY, 2)]

    # -- clearing ----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_clearing_a_key_without_replay_keeps_its_dead_letters(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1", "2")
        assert await backend.broker.clear_key(backend.queue, KEY, replay=False) == 0
        await send(backend, "3")
        assert await finish_all(backend) == ["3"]
        assert await dead(backend) == ["1", "2"]
        assert await backend.broker.inspector.stopped_keys(backend.queue) == []

    @promise()
    async def test_dead_letters_of_a_cleared_key_can_be_replayed(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1", "2", "3")
        await backend.broker.clear_key(backend.queue, KEY, replay=False)
        assert await backend.broker.replay(backend.queue, ["2"]) == ["2"]
        assert await finish_all(backend) == ["2"]

    @promise()
    async def test_a_key_that_is_not_stopped_cannot_be_cleared(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1", key=b"a")
        for replay in (True, False):
            assert await backend.broker.clear_key(backend.queue, b"b", replay=replay) is None
        assert await backend.broker.clear_key(backend.queue, b"a", replay=True) == 1
        assert await backend.broker.clear_key(backend.queue, b"a", replay=True) is None

    @promise()
    async def test_clearing_a_key_with_replay_delivers_its_dead_letters_again_in_order(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1", "2", "3")
        assert await backend.broker.clear_key(backend.queue, KEY, replay=True) == 3
        (first,) = await backend.take("c")
        assert first.body == b"1#again"
        assert await blocked(backend) == ["2", "3"]
        assert await dead(backend) == []
        await backend.settle("c", [first])
        assert await finish_all(backend) == ["2", "3"]

    @promise()
    async def test_messages_replayed_by_a_clear_are_delivered_before_newer_ones(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1", "2")
        await send(backend, "3")
        await take_all(backend)
        await send(backend, "4")
        assert await backend.broker.clear_key(backend.queue, KEY, replay=True) == 3
        await send(backend, "5")
        assert await finish_all(backend) == ["1", "2", "3", "4", "5"]

    @promise()
    async def test_a_clear_with_replay_skips_purged_dead_letters(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1", "2", "3")
        assert await backend.broker.purge(backend.queue, ["1"]) == ["1"]
        assert await backend.broker.clear_key(backend.queue, KEY, replay=True) == 2
        assert await finish_all(backend) == ["2", "3"]

    @promise()
    async def test_a_clear_with_nothing_to_replay_frees_the_key(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1")
        await backend.broker.purge(backend.queue, ["1"])
        assert await backend.broker.clear_key(backend.queue, KEY, replay=True) == 0
        await send(backend, "2")
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_a_replayed_message_that_dies_again_stops_its_key_again(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1", "2")
        await backend.broker.clear_key(backend.queue, KEY, replay=True)
        backend.at(9)
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        assert await backend.broker.inspector.stopped_keys(backend.queue) == [StoppedKey(KEY, "1", START + 9, waiting=2)]
        assert sorted(await dead(backend)) == ["1", "2"]
        assert await backend.broker.clear_key(backend.queue, KEY, replay=True) == 2
        assert await finish_all(backend) == ["1", "2"]

    @promise()
    async def test_a_clear_with_replay_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1")
        waiting = await backend.begun(backend.wait_for_work("c"))
        await backend.broker.clear_key(backend.queue, KEY, replay=True)
        assert ids(await waiting) == ["1"]

    @promise()
    async def test_dead_letters_of_a_stopped_key_cannot_be_replayed_individually(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1", "2")
        await begin(backend, "x", key=b"other")
        await backend.broker.join(backend.queue, "d", 1e6, order=OrderRules(stop=False))
        await backend.settle("c", await backend.broker.recover(backend.queue, "c", []), Kind.DEAD)
        assert await backend.broker.replay(backend.queue, ["2", "x", "1"]) == ["x"]
        assert await dead(backend) == ["1", "2"]
        assert ids(await take_all(backend)) == ["x"]

    @promise()
    async def test_dead_letters_of_a_stopped_key_can_be_purged(self, backend: BackendUnderTest) -> None:
        await stop(backend, "1", "2")
        assert await backend.broker.purge(backend.queue, ["2"]) == ["2"]
        assert await dead(backend) == ["1"]
        assert [stopped.waiting for stopped in await backend.broker.inspector.stopped_keys(backend.queue)] == [1]

    @promise()
    async def test_seven_hundred_stopped_keys_are_all_listed(self, backend: BackendUnderTest) -> None:
        await backend.broker.join(backend.queue, "c", 1e6, order=OrderRules(stop=True))
        keys = [b"key-%04d" % n for n in range(700)]
        for key in keys:
            await send(backend, key.decode(), key=key)
        while entries := await backend.take("c"):
            await backend.settle("c", entries, Kind.DEAD)
        stopped = await backend.broker.inspector.stopped_keys(backend.queue)
        assert [(each.key, each.by.encode(), each.waiting) for each in stopped] == [(key, key, 1) for key in keys]


def _post(name: str) -> Post:
    return Post(name, name.encode(), "t", key=KEY)
