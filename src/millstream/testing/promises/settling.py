"""How deliveries end."""

from __future__ import annotations

from millstream.broker import Receipt
from millstream.outcome import Ending, Kind, decode_ending
from millstream.testing.room import (
    DEAD_ENDING,
    DONE_ENDING,
    LETTER,
    START,
    Promises,
    Room,
    eventually,
    ids,
    outcome,
    promise,
)


class SettlingPromises(Promises):
    @promise()
    async def test_a_done_job_is_gone(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a")
        assert await room.settle("c", await room.take("c")) == 1
        assert await room.status("a") == "unknown"
        await room.broker.leave(room.queue, "c")
        assert await room.take("d") == []

    @promise()
    async def test_settling_again_after_a_lost_reply_changes_nothing(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b", "c", "d")
        entries = await room.take("c")
        outcomes = [outcome(entry, kind, result=b"x") for entry, kind in zip(entries, Kind, strict=True)]
        assert await room.broker.settle(room.queue, "c", outcomes) == 4
        before = await room.broker.inspector.queue(room.queue)
        assert await room.broker.settle(room.queue, "c", outcomes) == 0
        assert await room.broker.inspector.queue(room.queue) == before

    @promise()
    async def test_how_a_job_ended_stands(self, room: Room) -> None:
        await room.join("c")
        await room.send("s", 1, 2)
        done, kept = await room.take("c")
        await room.settle("c", [done])
        assert await room.settle("c", [done, kept], result=DONE_ENDING, result_ttl=60) == 1
        assert [await room.status("s-1"), await room.status("s-2")] == ["unknown", "done"]

    @promise()
    async def test_settling_again_does_not_touch_the_next_run(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        entries = await room.take("c")
        await room.settle("c", entries, Kind.RETRY)
        assert len(await room.take("c")) == 1
        assert await room.settle("c", entries, Kind.RETRY) == 0
        assert await room.status("a") == "running"

    @promise()
    async def test_settling_nothing_is_nothing(self, room: Room) -> None:
        await room.join("c")
        assert await room.settle("c", []) == 0

    @promise()
    async def test_a_delivery_twice_in_a_batch_is_settled_once(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        (entry,) = await room.take("c")
        assert await room.settle("c", [entry, entry]) == 1

    @promise()
    async def test_a_batch_may_end_in_every_way_at_once(self, room: Room) -> None:
        await room.join("c")
        await room.publish("done", "retry", "dead", "expired")
        entries = await room.take("c")
        assert (
            await room.broker.settle(room.queue, "c", [outcome(e, k, delay=5) for e, k in zip(entries, Kind, strict=True)]) == 4
        )
        state = await room.broker.inspector.queue(room.queue)
        assert (state.ready, state.running, state.scheduled, state.dead) == (0, 0, 1, 1)

    # -- results -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_result_is_kept_as_it_was_given(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await room.broker.results.get(room.queue, "a") == DONE_ENDING
        assert await room.status("a") == "done"

    @promise()
    async def test_a_result_without_time_to_live_is_not_kept(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=0)
        assert await room.broker.results.get(room.queue, "a") is None

    @promise()
    async def test_no_result_keeps_nothing(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), result=None, result_ttl=60, given_id=True)
        assert await room.broker.results.get(room.queue, "a") is None
        assert await room.status("a") == "unknown"

    @promise()
    async def test_a_result_goes_when_its_time_has_passed(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b")
        short, long = await room.take("c")
        await room.settle("c", [short], result=DONE_ENDING, result_ttl=0.05)
        await room.settle("c", [long], result=DONE_ENDING, result_ttl=600)

        async def gone() -> bool:
            return await room.broker.results.get(room.queue, "a") is None

        await eventually(gone)
        assert await room.status("a") == "unknown"
        assert await room.status("b") == "done"

    # -- retry -------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_retry_comes_back_when_its_delay_has_passed(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), Kind.RETRY, delay=5)
        assert await room.status("a") == "scheduled"
        room.at(4.5)
        assert await room.take("c") == []
        room.at(5)
        assert ids(await room.take("c")) == ["a"]

    @promise()
    async def test_a_retry_without_delay_comes_with_the_next_claim(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b")
        await room.settle("c", await room.take("c", 1), Kind.RETRY)
        assert await room.status("a") == "scheduled"
        assert ids(await room.take("c")) == ["b", "a"]

    @promise()
    async def test_a_retry_is_a_new_entry_with_the_body_and_expiry_it_was_given(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", expires=60)
        (first,) = await room.take("c")
        await room.settle("c", [first], Kind.RETRY, body=b"a#2")
        (second,) = await room.take("c")
        assert second.ref != first.ref
        assert (second.body, second.expires_ms) == (b"a#2", first.expires_ms)

    @promise()
    async def test_a_retry_starts_with_no_crashes(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=1)
        await room.join("c")
        entries = await room.take("c")
        assert [entry.crashes for entry in entries] == [1]
        await room.settle("c", entries, Kind.RETRY)
        assert [entry.crashes for entry in await room.take("c")] == [0]

    @promise()
    async def test_a_retry_keeps_its_id(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), Kind.RETRY, delay=5, given_id=True)
        assert await room.publish("a") == [Receipt.EXISTS]
        assert await room.publish("a", task="u") == [Receipt.CONFLICT]

    @promise()
    async def test_a_retry_is_never_refused(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", max_length=1)
        entries = await room.take("c")
        await room.publish("b")
        assert await room.settle("c", entries, Kind.RETRY) == 1
        assert sorted(ids(await room.take("c"))) == ["a", "b"]

    # -- dead --------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_dead_job_leaves_a_letter(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        room.at(2.5)
        await room.settle("c", await room.take("c"), Kind.DEAD, body=b"a#again", task="mail")
        dead = await room.broker.inspector.dead_letter(room.queue, "a")
        assert dead is not None
        assert (dead.id, dead.task, dead.queue, dead.letter) == ("a", "mail", room.queue, LETTER)
        assert (dead.body, dead.died_at) == (b"a#again", START + 2.5)
        assert await room.status("a") == "dead"

    @promise()
    async def test_a_dead_jobs_ending_is_kept(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", result=DEAD_ENDING, result_ttl=60)
        assert await room.broker.results.get(room.queue, "a") == DEAD_ENDING

    @promise()
    async def test_a_dead_job_is_not_claimed_again(self, room: Room) -> None:
        await room.join("c", "d")
        await room.die("c", "a")
        await room.broker.leave(room.queue, "c")
        assert await room.take("d") == []

    @promise(dead_max_count=3)
    async def test_the_oldest_dead_letters_make_room_for_new_ones(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", "b", "c", "d", "e")
        assert [dead.id for dead in await room.broker.inspector.dead_letters(room.queue)] == ["c", "d", "e"]
        assert await room.status("a") == "unknown"
        assert await room.broker.inspector.dead_letter(room.queue, "a") is None
        assert await room.broker.replay(room.queue, ["a"]) == []

    @promise(dead_max_age=100.0)
    async def test_old_dead_letters_go_when_a_new_one_comes(self, room: Room) -> None:
        await room.join("c", lease=1e6)
        await room.die("c", "old")
        room.at(50)
        await room.die("c", "young")
        room.at(120)
        await room.die("c", "new")
        assert [dead.id for dead in await room.broker.inspector.dead_letters(room.queue)] == ["young", "new"]
        assert await room.status("old") == "unknown"

    # -- expired -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_an_expired_jobs_ending_says_so(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), Kind.EXPIRED, result_ttl=60)
        ending = await room.broker.results.get(room.queue, "a")
        assert ending is not None and decode_ending(ending) == Ending("expired")
        assert await room.status("a") == "expired"

    @promise()
    async def test_an_expired_job_whose_task_keeps_no_results_leaves_nothing(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), Kind.EXPIRED, result_ttl=0)
        assert await room.status("a") == "unknown"
