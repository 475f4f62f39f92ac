"""A key that stops when one of its messages is dead: what follows dies too, until someone clears it."""

from __future__ import annotations

from millstream.broker import Entry, OrderRules, Post, StoppedKey
from millstream.message import ErrorNote
from millstream.outcome import Kind
from millstream.testing.keyed import KEY, blocked, dead, finish_all, retry, send, take_all
from millstream.testing.room import LETTER, START, Promises, Room, ids, promise


async def begin(room: Room, *names: str, key: bytes = KEY) -> Entry:
    """Messages of one key, the first of which is out, where a death stops the key."""
    await room.broker.join(room.queue, "c", 1e6, order=OrderRules(stop=True))
    await send(room, *names, key=key)
    (entry,) = await room.take("c")
    return entry


async def stop(room: Room, *names: str, key: bytes = KEY) -> None:
    """The first of them dies, and so stops the key."""
    entry = await begin(room, *names, key=key)
    assert await room.settle("c", [entry], Kind.DEAD, body=f"{names[0]}#again".encode()) == 1


class StoppingPromises(Promises):
    @promise()
    async def test_a_death_stops_its_key_and_those_that_wait_die_in_their_order(self, room: Room) -> None:
        await stop(room, "1", "2", "3")
        assert await take_all(room) == []
        assert await dead(room) == ["1", "2", "3"]
        assert await dead(room, "stopped") == ["2", "3"]
        assert (await blocked(room), await room.status("2")) == ([], "dead")

    @promise()
    async def test_what_comes_later_of_a_stopped_key_dies(self, room: Room) -> None:
        await stop(room, "1")
        await send(room, "2", "3")
        assert await take_all(room) == []
        assert await dead(room, "stopped") == ["2", "3"]

    @promise()
    async def test_one_that_is_due_later_of_a_stopped_key_dies(self, room: Room) -> None:
        await stop(room, "1")
        await send(room, "2", delay=5)
        await take_all(room)
        assert await dead(room, "stopped") == []
        room.at(5)
        assert await take_all(room) == []
        assert await dead(room, "stopped") == ["2"]

    @promise()
    async def test_other_keys_and_what_has_none_go_on(self, room: Room) -> None:
        await stop(room, "1", key=b"a")
        await send(room, "ab", key=b"ab")
        await send(room, "empty", key=b"")
        await send(room, "none", key=None)
        assert ids(await take_all(room)) == ["ab", "empty", "none"]

    @promise()
    async def test_without_that_rule_the_next_goes_on(self, room: Room) -> None:
        await room.broker.join(room.queue, "c", 30, order=OrderRules(stop=False))
        await send(room, "1", "2")
        await room.settle("c", await room.take("c"), Kind.DEAD)
        assert ids(await room.take("c")) == ["2"]
        assert await room.broker.inspector.stopped_keys(room.queue) == []

    @promise()
    async def test_one_without_a_key_stops_nothing(self, room: Room) -> None:
        await room.broker.join(room.queue, "c", 30, order=OrderRules(stop=True))
        await send(room, "x", key=None)
        await room.settle("c", await room.take("c"), Kind.DEAD)
        assert await room.broker.inspector.stopped_keys(room.queue) == []
        await send(room, "y", key=None)
        await send(room, "z", key=b"")
        assert ids(await room.take("c")) == ["y", "z"]

    @promise()
    async def test_only_a_death_stops_a_key(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3", "4")
        await room.settle("c", [first])
        await room.settle("c", await room.take("c"), Kind.EXPIRED)
        (third,) = await room.take("c")
        await retry(room, third, delay=0)
        assert await room.broker.inspector.stopped_keys(room.queue) == []
        assert await finish_all(room) == ["3", "4"]

    @promise()
    async def test_the_letters_of_those_that_follow_say_so(self, room: Room) -> None:
        await stop(room, "1", "2")
        await send(room, "3")
        await take_all(room)
        root, *letters = await room.broker.inspector.dead_letters(room.queue)
        assert (root.id, root.letter, root.key) == ("1", LETTER, KEY)
        for name, letter in zip(("2", "3"), letters, strict=True):
            said = letter.letter
            assert (said.reason, said.error.type, said.error.traceback) == ("stopped", "OrderError", "")
            assert isinstance(said.error, ErrorNote) and said.error.message
            assert (said.attempts, said.crashes, said.enqueued_ms) == (0, 0, 0)
            assert (letter.id, letter.task, letter.body, letter.key) == (name, "t", name.encode(), KEY)
        assert (await room.totals())["dead"] == 3

    # -- what is seen ------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_stopped_key_is_seen(self, room: Room) -> None:
        room.at(3)
        await stop(room, "1", "2")
        room.at(4)
        await send(room, "3")
        await take_all(room)
        assert await room.broker.inspector.stopped_keys(room.queue) == [StoppedKey(KEY, "1", START + 3, waiting=3)]
        state = await room.broker.inspector.queue(room.queue)
        assert (state.stopped, state.dead, state.blocked, state.ready) == (1, 3, 0, 0)

    @promise()
    async def test_stopped_keys_are_listed_in_order(self, room: Room) -> None:
        keys = [b"b", b"", b"a\n", b"\xff", b"a", b"\0"]
        for number, key in enumerate(keys):
            await stop(room, str(number), key=key)
        assert [stopped.key for stopped in await room.broker.inspector.stopped_keys(room.queue)] == sorted(keys)
        assert (await room.broker.inspector.queue(room.queue)).stopped == len(keys)

    @promise()
    async def test_where_nothing_is_stopped_nothing_is_listed(self, room: Room) -> None:
        assert await room.broker.inspector.stopped_keys(room.queue) == []
        assert await room.broker.inspector.stopped_keys("nobody-used-it") == []

    @promise()
    async def test_a_key_is_stopped_at_one_address(self, room: Room) -> None:
        await stop(room, "1")
        await room.join("d", queue=room.other_queue)
        assert await room.broker.inspector.stopped_keys(room.other_queue) == []
        await room.broker.publish(room.other_queue, [_post("own")])
        assert "own" in ids(await room.take("d", queue=room.other_queue))

    @promise()
    async def test_a_key_stays_stopped_when_all_have_left(self, room: Room) -> None:
        await stop(room, "1")
        await room.broker.leave(room.queue, "c")
        other = await room.another()
        await other.join(room.queue, "d", 30)
        await send(room, "2")
        assert (await other.claim(room.queue, "d", 10)).entries == []
        assert [key.by for key in await other.inspector.stopped_keys(room.queue)] == ["1"]

    # -- the rule ----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_the_rule_holds_for_all_and_outlives_who_said_it(self, room: Room) -> None:
        await room.broker.join(room.queue, "c", 30, order=OrderRules(stop=True))
        await room.broker.leave(room.queue, "c")
        await room.join("d")
        await send(room, "1", "2")
        await room.settle("d", await room.take("d"), Kind.DEAD)
        assert await dead(room, "stopped") == ["2"]

    @promise()
    async def test_the_rule_is_what_was_said_last(self, room: Room) -> None:
        await stop(room, "1")
        await room.broker.join(room.queue, "d", 30, order=OrderRules(stop=False))
        await send(room, "2")
        await send(room, "a1", "a2", key=b"a")
        await room.settle("c", await take_all(room), Kind.DEAD)
        assert ids(await take_all(room)) == ["a2"]
        assert [(key.key, key.waiting) for key in await room.broker.inspector.stopped_keys(room.queue)] == [(KEY, 2)]

    # -- clearing ----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_key_that_is_cleared_goes_on_and_its_letters_stay(self, room: Room) -> None:
        await stop(room, "1", "2")
        assert await room.broker.clear_key(room.queue, KEY, replay=False) == 0
        await send(room, "3")
        assert await finish_all(room) == ["3"]
        assert await dead(room) == ["1", "2"]
        assert await room.broker.inspector.stopped_keys(room.queue) == []

    @promise()
    async def test_letters_of_a_key_that_was_cleared_can_be_replayed(self, room: Room) -> None:
        await stop(room, "1", "2", "3")
        await room.broker.clear_key(room.queue, KEY, replay=False)
        assert await room.broker.replay(room.queue, ["2"]) == ["2"]
        assert await finish_all(room) == ["2"]

    @promise()
    async def test_a_key_that_is_not_stopped_cannot_be_cleared(self, room: Room) -> None:
        await stop(room, "1", key=b"a")
        for replay in (True, False):
            assert await room.broker.clear_key(room.queue, b"b", replay=replay) is None
        assert await room.broker.clear_key(room.queue, b"a", replay=True) == 1
        assert await room.broker.clear_key(room.queue, b"a", replay=True) is None

    @promise()
    async def test_a_key_cleared_with_replay_goes_on_in_order_with_the_one_that_stopped_it(self, room: Room) -> None:
        await stop(room, "1", "2", "3")
        assert await room.broker.clear_key(room.queue, KEY, replay=True) == 3
        (first,) = await room.take("c")
        assert first.body == b"1#again"
        assert await blocked(room) == ["2", "3"]
        assert await dead(room) == []
        await room.settle("c", [first])
        assert await finish_all(room) == ["2", "3"]

    @promise()
    async def test_what_is_cleared_with_replay_comes_before_anything_newer(self, room: Room) -> None:
        await stop(room, "1", "2")
        await send(room, "3")
        await take_all(room)
        await send(room, "4")
        assert await room.broker.clear_key(room.queue, KEY, replay=True) == 3
        await send(room, "5")
        assert await finish_all(room) == ["1", "2", "3", "4", "5"]

    @promise()
    async def test_a_clearing_with_replay_brings_back_what_is_still_dead(self, room: Room) -> None:
        await stop(room, "1", "2", "3")
        assert await room.broker.purge(room.queue, ["1"]) == ["1"]
        assert await room.broker.clear_key(room.queue, KEY, replay=True) == 2
        assert await finish_all(room) == ["2", "3"]

    @promise()
    async def test_a_clearing_with_nothing_left_to_replay_frees_the_key(self, room: Room) -> None:
        await stop(room, "1")
        await room.broker.purge(room.queue, ["1"])
        assert await room.broker.clear_key(room.queue, KEY, replay=True) == 0
        await send(room, "2")
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_one_that_dies_again_stops_the_key_again(self, room: Room) -> None:
        await stop(room, "1", "2")
        await room.broker.clear_key(room.queue, KEY, replay=True)
        room.at(9)
        await room.settle("c", await room.take("c"), Kind.DEAD)
        assert await room.broker.inspector.stopped_keys(room.queue) == [StoppedKey(KEY, "1", START + 9, waiting=2)]
        assert sorted(await dead(room)) == ["1", "2"]
        assert await room.broker.clear_key(room.queue, KEY, replay=True) == 2
        assert await finish_all(room) == ["1", "2"]

    @promise()
    async def test_a_clearing_with_replay_ends_a_wait(self, room: Room) -> None:
        await stop(room, "1")
        waiting = await room.begun(room.wait_for_work("c"))
        await room.broker.clear_key(room.queue, KEY, replay=True)
        assert ids(await waiting) == ["1"]

    @promise()
    async def test_letters_of_a_stopped_key_cannot_be_replayed_one_by_one(self, room: Room) -> None:
        await stop(room, "1", "2")
        await begin(room, "x", key=b"other")
        await room.broker.join(room.queue, "d", 1e6, order=OrderRules(stop=False))
        await room.settle("c", await room.broker.recover(room.queue, "c", []), Kind.DEAD)
        assert await room.broker.replay(room.queue, ["2", "x", "1"]) == ["x"]
        assert await dead(room) == ["1", "2"]
        assert ids(await take_all(room)) == ["x"]

    @promise()
    async def test_letters_of_a_stopped_key_can_be_purged(self, room: Room) -> None:
        await stop(room, "1", "2")
        assert await room.broker.purge(room.queue, ["2"]) == ["2"]
        assert await dead(room) == ["1"]
        assert [stopped.waiting for stopped in await room.broker.inspector.stopped_keys(room.queue)] == [1]

    @promise()
    async def test_stopped_keys_are_listed_however_many_there_are(self, room: Room) -> None:
        await room.broker.join(room.queue, "c", 1e6, order=OrderRules(stop=True))
        keys = [b"key-%04d" % n for n in range(700)]
        for key in keys:
            await send(room, key.decode(), key=key)
        while entries := await room.take("c"):
            await room.settle("c", entries, Kind.DEAD)
        stopped = await room.broker.inspector.stopped_keys(room.queue)
        assert [(each.key, each.by.encode(), each.waiting) for each in stopped] == [(key, key, 1) for key in keys]


def _post(name: str) -> Post:
    return Post(name, name.encode(), "t", key=KEY)
