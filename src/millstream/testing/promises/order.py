"""Messages of one key are given one at a time and in order, through all that can happen to them."""

from __future__ import annotations

import pytest

from millstream.broker.contract import SUSPECT_AFTER
from millstream.errors import LeaseLost
from millstream.outcome import Kind
from millstream.testing.keyed import begin, blocked, dead, finish_all, retry, send, take_all
from millstream.testing.promises.leases import lapse
from millstream.testing.room import Promises, Room, ids, promise

ODD_KEYS = [b"", b"\0", b"\n", b"/", b":", b"a", b"a\0", b"ab", b"{a}", b"\xff\xfe", "né".encode(), b"0", b"0-0", b"!released"]


class OrderPromises(Promises):
    # -- the turn ----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_of_one_key_one_message_is_out_at_a_time(self, room: Room) -> None:
        await room.join("c", "d")
        await send(room, "1", "2", "3")
        assert ids(await room.take("c")) == ["1"]
        assert await room.take("d") == []
        assert await room.take("c") == []

    @promise()
    async def test_messages_of_one_key_are_given_in_the_order_in_which_they_were_published(self, room: Room) -> None:
        await room.join("c")
        names = [f"{n:02}" for n in range(20)]
        await send(room, *names)
        assert await finish_all(room) == names

    @promise()
    async def test_one_that_is_done_passes_the_turn_on(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3")
        assert await room.settle("c", [first]) == 1
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_one_that_is_dead_passes_the_turn_on(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3")
        assert await room.settle("c", [first], Kind.DEAD) == 1
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_one_that_has_expired_passes_the_turn_on(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3")
        assert await room.settle("c", [first], Kind.EXPIRED) == 1
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_the_last_of_a_key_leaves_it_free(self, room: Room) -> None:
        first = await begin(room, "1")
        await room.settle("c", [first])
        await send(room, "2")
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_keys_do_not_wait_for_each_other(self, room: Room) -> None:
        await begin(room, "a1", "a2", key=b"a")
        await send(room, "b1", "b2", key=b"b")
        assert ids(await room.take("c")) == ["b1"]

    @promise()
    async def test_messages_without_a_key_are_never_blocked_and_block_nothing(self, room: Room) -> None:
        await begin(room, "1", "2")
        await send(room, "x", "y", "z", key=None)
        entries = await room.take("c")
        assert ids(entries) == ["x", "y", "z"]
        await send(room, "other", key=b"other")
        assert ids(await room.take("c")) == ["other"]

    @promise()
    async def test_a_key_is_any_bytes_and_no_other_key(self, room: Room) -> None:
        await room.join("c")
        for round_ in ("first", "second"):
            for number, key in enumerate(ODD_KEYS):
                await send(room, f"{round_}{number}", key=key)
        entries = await take_all(room)
        assert ids(entries) == [f"first{number}" for number in range(len(ODD_KEYS))]
        assert len(await blocked(room)) == len(ODD_KEYS)
        await room.settle("c", entries)
        assert ids(await take_all(room)) == [f"second{number}" for number in range(len(ODD_KEYS))]

    @promise()
    async def test_other_processes_know_whose_turn_it_is(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        other = await room.another()
        await other.join(room.queue, "d", 30)
        assert (await other.claim(room.queue, "d", 10)).entries == []
        await room.settle("c", [first])
        assert ids((await other.claim(room.queue, "d", 10)).entries) == ["2"]

    # -- what does not pass it on ------------------------------------------------------------------------------------------

    @promise()
    async def test_one_that_is_handed_back_still_has_the_turn(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await room.join("d")
        await room.release("c", [first])
        assert ids(await room.take("d")) == ["1"]

    @promise()
    async def test_one_whose_consumer_left_still_has_the_turn(self, room: Room) -> None:
        await begin(room, "1", "2")
        await room.join("d")
        await room.broker.leave(room.queue, "c")
        assert [(entry.body, entry.crashes) for entry in await room.take("d")] == [(b"1", 1)]
        assert await room.take("d") == []

    @promise()
    async def test_one_whose_consumer_was_ended_on_purpose_still_has_the_turn(self, room: Room) -> None:
        await begin(room, "1", "2")
        await room.join("d")
        await room.broker.leave(room.queue, "c", blameless=True)
        assert [(entry.body, entry.crashes) for entry in await room.take("d")] == [(b"1", 0)]
        assert await room.take("d") == []

    @promise()
    async def test_one_whose_consumer_lapsed_still_has_the_turn(self, room: Room) -> None:
        await room.join("c", "d", lease=10)
        await send(room, "1", "2")
        await room.take("c")
        await lapse(room, lease=10, watcher="d")
        assert [(entry.body, entry.crashes) for entry in await room.take("d")] == [(b"1", 1)]
        assert await room.take("d") == []

    @promise()
    async def test_a_suspect_still_has_the_turn(self, room: Room) -> None:
        await send(room, "1", "2")
        await room.crash("x", lives=SUSPECT_AFTER)
        await room.join("c")
        claim = await room.claim("c")
        assert (claim.entries, claim.suspects) == ([], True)
        alone = await room.take("c", alone=True)
        assert ids(alone) == ["1"]
        await room.settle("c", alone)
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_a_claim_whose_reply_was_lost_has_the_turn(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        assert await room.broker.recover(room.queue, "c", []) == [first]
        await room.settle("c", [first])
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_a_settle_that_is_sent_twice_passes_the_turn_once(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3")
        assert [await room.settle("c", [first]) for _ in range(2)] == [1, 0]
        assert ids(await room.take("c")) == ["2"]
        assert await room.settle("c", [first]) == 0
        assert await room.take("c") == []

    @promise()
    async def test_a_delivery_that_was_settled_before_passes_nothing_on(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await retry(room, first, delay=0)
        for kind in Kind:
            assert await room.settle("c", [first], kind) == 0
        again = await room.take("c")
        assert ids(again) == ["1"]
        for kind in Kind:
            assert await room.settle("c", [first], kind) == 0
        assert await room.take("c") == []
        assert await room.settle("c", [*again, first]) == 1
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_a_settle_after_the_lease_was_lost_passes_nothing_on(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await room.join("d")
        await room.broker.leave(room.queue, "c")
        for kind in Kind:
            with pytest.raises(LeaseLost):
                await room.settle("c", [first], kind)
        assert ids(await room.take("d")) == ["1"]
        assert await room.take("d") == []

    # -- retries -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_one_that_waits_for_a_retry_has_the_turn(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await retry(room, first, delay=5)
        await send(room, "3")
        assert await room.take("c") == []
        room.at(5)
        again = await room.take("c")
        assert ids(again) == ["1"]
        await room.settle("c", again)
        assert await finish_all(room) == ["2", "3"]

    @promise()
    async def test_a_retry_that_is_due_at_once_has_the_turn(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await send(room, "3")
        await retry(room, first, delay=0)
        assert ids(await room.take("c")) == ["1"]

    @promise()
    async def test_a_retry_that_is_ready_and_was_not_claimed_yet_has_the_turn(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await retry(room, first)
        await send(room, "3")
        room.at(5)
        await room.claim("c", 0)
        assert ids(await take_all(room, count=1)) == ["1"]
        assert await take_all(room) == []
        assert await blocked(room) == ["2", "3"]

    @promise()
    async def test_a_retry_that_was_promoted_by_hand_has_the_turn(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await retry(room, first, delay=1000)
        await send(room, "3")
        assert await room.broker.promote(room.queue, ["1"]) == ["1"]
        again = await room.take("c")
        assert ids(again) == ["1"]
        await room.settle("c", again)
        assert await finish_all(room) == ["2", "3"]

    @promise()
    async def test_a_retry_blocks_its_key_and_no_other(self, room: Room) -> None:
        first = await begin(room, "a1", "a2", key=b"a")
        await retry(room, first)
        await send(room, "b1", "b2", key=b"b")
        await send(room, "free", key=None)
        assert await finish_all(room) == ["b1", "free", "b2"]

    @promise()
    async def test_a_retry_outlives_its_consumer_with_the_turn(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await retry(room, first, body=b"1#second")
        await room.broker.leave(room.queue, "c")
        await room.join("d")
        assert await room.take("d") == []
        room.at(5)
        assert [entry.body for entry in await room.take("d")] == [b"1#second"]

    @promise()
    async def test_order_holds_through_hand_backs_crashes_retries_and_deaths(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3", "4")
        await room.release("c", [first])
        (again,) = await room.take("c")
        await retry(room, again, delay=1)
        room.at(1)
        await room.take("c")
        await room.broker.leave(room.queue, "c")
        await room.join("d", lease=1e6)
        await send(room, "5")
        taken_over = await room.take("d")
        assert [(entry.body, entry.crashes) for entry in taken_over] == [(b"1", 1)]
        await room.settle("d", taken_over)
        await room.settle("d", await room.take("d"), Kind.DEAD)
        assert await finish_all(room, "d") == ["3", "4", "5"]
        assert await dead(room) == ["2"]

    # -- who is blocked ----------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_claim_gives_the_first_of_many_keys(self, room: Room) -> None:
        await room.join("c")
        keys = [b"%d" % n for n in range(50)]
        for round_ in range(3):
            for key in keys:
                await send(room, f"{round_}-{key.decode()}", key=key)
        assert ids(await take_all(room)) == [f"0-{n}" for n in range(50)]

    @promise()
    async def test_a_claim_reads_on_behind_those_that_are_blocked(self, room: Room) -> None:
        await begin(room, "1")
        await send(room, *[f"n{n}" for n in range(600)])
        await send(room, "free", key=None)
        await send(room, "other", key=b"other")
        assert ids(await take_all(room)) == ["free", "other"]

    @promise()
    async def test_blocked_ones_do_not_count_towards_what_is_asked_for(self, room: Room) -> None:
        await begin(room, "1")
        await send(room, "2", "3")
        await send(room, "x", "y", "z", key=None)
        assert ids(await take_all(room, count=2)) == ["x", "y"]
        assert ids(await take_all(room, count=2)) == ["z"]

    @promise()
    async def test_a_claim_of_nothing_blocks_nothing(self, room: Room) -> None:
        await begin(room, "1")
        await send(room, "2")
        await room.claim("c", 0)
        assert (await room.broker.inspector.queue(room.queue)).blocked == 0

    @promise()
    async def test_what_is_paused_gives_nothing_and_blocks_nothing(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await send(room, "3")
        await room.broker.pause(room.queue)
        await room.settle("c", [first])
        assert await room.take("c") == []
        state = await room.broker.inspector.queue(room.queue)
        assert (state.ready, state.blocked) == (2, 0)
        await room.broker.resume(room.queue)
        assert await finish_all(room) == ["2", "3"]

    @promise()
    async def test_turns_that_one_settle_passes_on_come_in_the_order_of_the_outcomes(self, room: Room) -> None:
        await room.join("c")
        for key in (b"a", b"b", b"d"):
            await send(room, f"{key.decode()}1", f"{key.decode()}2", key=key)
        a, b, d = await take_all(room)
        assert await room.settle("c", [d, a, b]) == 3
        assert ids(await room.take("c")) == ["d2", "a2", "b2"]

    @promise()
    async def test_a_turn_that_is_passed_on_ends_a_wait(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await room.join("d")
        waiting = await room.begun(room.wait_for_work("d"))
        await room.settle("c", [first])
        assert ids(await waiting) == ["2"]

    @promise()
    async def test_one_that_was_blocked_arrives_as_it_was_sent(self, room: Room) -> None:
        first = await begin(room, "1")
        await send(room, "2", expires=60)
        assert await room.take("c") == []
        await room.settle("c", [first])
        (second,) = await room.take("c")
        assert (second.body, second.crashes, second.expires_ms) == (b"2", 0, 1_800_000_060_000)

    @promise()
    async def test_one_that_expired_while_it_was_blocked_is_given_in_its_turn_and_passes_it_on(self, room: Room) -> None:
        first = await begin(room, "1")
        await send(room, "2", expires=1)
        await send(room, "3")
        await room.take("c")
        room.at(10)
        assert await blocked(room) == ["2", "3"]
        await room.settle("c", [first])
        second = await room.take("c")
        assert ids(second) == ["2"]
        await room.settle("c", second, Kind.EXPIRED)
        assert ids(await room.take("c")) == ["3"]

    @promise()
    async def test_one_that_is_published_with_a_delay_has_its_place_when_it_is_due(self, room: Room) -> None:
        await room.join("c", lease=1e6)
        await send(room, "late", delay=5)
        await send(room, "1", "2")
        first = await room.take("c")
        assert ids(first) == ["1"]
        room.at(5)
        assert await room.take("c") == []
        await send(room, "3")
        await room.settle("c", first)
        assert await finish_all(room) == ["2", "late", "3"]

    @promise()
    async def test_one_that_is_not_due_yet_has_no_turn(self, room: Room) -> None:
        await room.join("c")
        await send(room, "late", delay=5)
        await send(room, "1")
        assert ids(await room.take("c")) == ["1"]

    # -- dead ones -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_dead_letter_knows_its_key(self, room: Room) -> None:
        await room.join("c")
        await send(room, "1", key=b"\xff\n\0")
        await send(room, "2", key=b"")
        await send(room, "3", key=None)
        await room.settle("c", await take_all(room), Kind.DEAD)
        letters = await room.broker.inspector.dead_letters(room.queue)
        assert [letter.key for letter in letters] == [b"\xff\n\0", b"", None]
        one = await room.broker.inspector.dead_letter(room.queue, "1")
        assert one is not None and one.key == b"\xff\n\0"

    @promise()
    async def test_what_is_replayed_takes_its_old_place_among_those_that_wait(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3", "4")
        await room.settle("c", [first], Kind.DEAD)
        await room.settle("c", await room.take("c"), Kind.DEAD)
        third = await room.take("c")
        assert ids(third) == ["3"]
        await send(room, "5")
        assert await room.broker.replay(room.queue, ["2", "1"]) == ["2", "1"]
        assert await take_all(room) == []
        assert await blocked(room) == ["1", "2", "4", "5"]
        await room.settle("c", third)
        assert await finish_all(room) == ["1", "2", "4", "5"]

    @promise()
    async def test_what_is_replayed_together_comes_in_its_old_order(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3")
        await room.settle("c", [first], Kind.DEAD)
        for _ in range(2):
            await room.settle("c", await room.take("c"), Kind.DEAD)
        assert await room.broker.replay(room.queue, ["3", "1", "2"]) == ["3", "1", "2"]
        assert await finish_all(room) == ["1", "2", "3"]

    @promise()
    async def test_one_that_died_after_retries_is_replayed_to_where_it_began(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3")
        await retry(room, first, delay=1)
        room.at(1)
        await room.settle("c", await room.take("c"), Kind.DEAD)
        second = await room.take("c")
        assert ids(second) == ["2"]
        await room.broker.replay(room.queue, ["1"])
        assert await take_all(room) == []
        assert await blocked(room) == ["1", "3"]

    @promise()
    async def test_what_is_replayed_while_its_key_is_free_has_the_turn(self, room: Room) -> None:
        first = await begin(room, "1")
        await room.settle("c", [first], Kind.DEAD)
        await room.broker.replay(room.queue, ["1"])
        await send(room, "2")
        assert ids(await take_all(room)) == ["1"]

    @promise()
    async def test_what_is_replayed_and_dies_again_passes_the_turn_on(self, room: Room) -> None:
        first = await begin(room, "1")
        await room.settle("c", [first], Kind.DEAD)
        await room.broker.replay(room.queue, ["1"])
        again = await room.take("c")
        await send(room, "2")
        assert await room.take("c") == []
        await room.settle("c", again, Kind.DEAD)
        assert ids(await room.take("c")) == ["2"]

    # -- what is seen --------------------------------------------------------------------------------------------------------

    @promise()
    async def test_blocked_ones_are_counted_apart(self, room: Room) -> None:
        await begin(room, "1", "2", "3")
        state = await room.broker.inspector.queue(room.queue)
        assert (state.ready, state.running, state.scheduled, state.blocked) == (0, 1, 0, 2)
        assert await room.status("2") == "blocked"

    @promise()
    async def test_one_that_got_the_turn_is_ready(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3")
        await room.settle("c", [first])
        state = await room.broker.inspector.queue(room.queue)
        assert (state.ready, state.running, state.blocked) == (1, 0, 1)
        assert (await room.status("2"), await room.status("3")) == ("ready", "blocked")

    @promise()
    async def test_blocked_ones_are_listed_by_key_and_each_keys_in_their_order(self, room: Room) -> None:
        await room.join("c")
        for number, name in enumerate(("b", "a", "ab", "b", "a", "ab", "a", "b")):
            await send(room, f"{name}{number}", key=name.encode())
        assert ids(await take_all(room)) == ["b0", "a1", "ab2"]
        views = await room.broker.inspector.jobs(room.queue, "blocked")
        assert [view.body.decode() for view in views] == ["a4", "a6", "ab5", "b3", "b7"]
        assert {view.status for view in views} == {"blocked"}

    @promise()
    async def test_blocked_ones_are_read_in_pages(self, room: Room) -> None:
        await room.join("c")
        for number in range(9):
            await send(room, f"{number}", key=b"%d\n" % (number % 3))
        await take_all(room)
        found: list[bytes] = []
        after = ""
        while page := await room.broker.inspector.jobs(room.queue, "blocked", after=after, limit=2):
            assert len(page) <= 2
            found += [view.body for view in page]
            after = page[-1].cursor
        assert found == [b"3", b"6", b"4", b"7", b"5", b"8"]

    @promise()
    async def test_one_that_is_blocked_is_shown_whole(self, room: Room) -> None:
        await begin(room, "1")
        await send(room, "2", expires=60)
        await room.take("c")
        view = await room.broker.inspector.job(room.queue, "2")
        assert view is not None
        assert (view.id, view.status, view.body, view.expires_at) == ("2", "blocked", b"2", 1_800_000_060.0)
