"""What can be seen."""

from __future__ import annotations

from millstream.broker import QueueState
from millstream.broker.contract import SUSPECT_AFTER
from millstream.outcome import Kind
from millstream.testing.room import DEAD_ENDING, DONE_ENDING, QUEUE, Promises, Room, outcome, promise

NOTHING = {"published": 0, "done": 0, "retried": 0, "dead": 0, "expired": 0, "cancelled": 0, "released": 0, "lapsed": 0}


class InspectingPromises(Promises):
    @promise()
    async def test_opening_twice_is_opening_once(self, room: Room) -> None:
        await room.broker.open()
        assert await room.broker.inspector.queues() == [QUEUE]

    @promise()
    async def test_closing_twice_is_closing_once(self, room: Room) -> None:
        other = await room.another()
        await other.close()
        await other.close()
        assert await room.broker.inspector.queues() == [QUEUE]

    @promise()
    async def test_a_server_has_a_name(self, room: Room) -> None:
        assert room.broker.capabilities.server

    @promise()
    async def test_a_job_nobody_heard_of_is_unknown(self, room: Room) -> None:
        assert await room.status("never") == "unknown"
        assert await room.status("never", "no such queue") == "unknown"

    @promise()
    async def test_a_jobs_status_follows_its_life(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", delay=5)
        seen = [await room.status("a")]
        room.at(5)
        await room.claim("c", 0)
        seen.append(await room.status("a"))
        entries = await room.take("c")
        seen.append(await room.status("a"))
        await room.release("c", entries)
        seen.append(await room.status("a"))
        await room.settle("c", await room.take("c"), Kind.RETRY, delay=5)
        seen.append(await room.status("a"))
        room.at(10)
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        seen.append(await room.status("a"))
        assert seen == ["scheduled", "ready", "running", "ready", "scheduled", "done"]

    @promise()
    async def test_a_job_that_waits_for_a_takeover_or_to_run_alone_is_ready(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=SUSPECT_AFTER)
        assert await room.status("a") == "ready"
        await room.join("c")
        assert (await room.claim("c")).suspects
        assert await room.status("a") == "ready"
        await room.claim("c", alone=True)
        assert await room.status("a") == "running"

    @promise()
    async def test_a_dead_job_is_dead_whether_its_ending_is_kept_or_not(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "kept", result=DEAD_ENDING, result_ttl=60)
        await room.die("c", "bare")
        assert [await room.status("kept"), await room.status("bare")] == ["dead", "dead"]

    @promise()
    async def test_every_declared_or_joined_queue_is_listed_in_order(self, room: Room) -> None:
        await room.broker.declare("z")
        await room.join("c", queue="b")
        await room.broker.declare("a")
        await room.broker.declare("a")
        assert await room.broker.inspector.queues() == ["a", "b", QUEUE, "z"]

    @promise()
    async def test_a_queue_nobody_used_is_empty(self, room: Room) -> None:
        assert await room.broker.inspector.queue("none") == QueueState("none", 0, 0, 0, 0, False, 0, NOTHING)
        assert await room.broker.inspector.queues() == [QUEUE]

    @promise()
    async def test_a_queue_in_numbers(self, room: Room) -> None:
        await room.join("c", "d")
        await room.die("c", "dead")
        await room.publish("r1", "r2", "r3", "w1", "w2")
        await room.take("c", 3)
        await room.publish("s1", delay=5)
        await room.broker.pause(QUEUE)
        state = await room.broker.inspector.queue(QUEUE)
        assert state == QueueState(QUEUE, 2, 3, 1, 1, True, 2, {**NOTHING, "published": 7, "dead": 1})

    @promise()
    async def test_released_orphaned_and_set_aside_jobs_are_counted_as_ready(self, room: Room) -> None:
        await room.publish("suspect")
        await room.crash("x", lives=SUSPECT_AFTER)
        await room.join("c", "d")
        await room.claim("c")
        await room.publish("orphan", "released")
        await room.take("d", 1)
        await room.release("c", await room.take("c", 1))
        await room.broker.leave(QUEUE, "d")
        state = await room.broker.inspector.queue(QUEUE)
        assert (state.ready, state.running, state.consumers) == (3, 0, 1)

    @promise()
    async def test_totals_count_what_happened(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("done", "retry", "dead", "expired", "release", "cancel")
        done, retry, dead, expired, release = await room.take("c", 5)
        await room.broker.cancel(QUEUE, "cancel")
        kinds = zip((done, retry, dead, expired), Kind, strict=True)
        await room.broker.settle(QUEUE, "c", [outcome(entry, kind) for entry, kind in kinds])
        await room.release("c", [release])
        await room.publish("done2", "release2")
        await room.release("c", (await room.take("d"))[:0])
        assert await room.totals() == {
            "published": 8,
            "done": 1,
            "retried": 1,
            "dead": 1,
            "expired": 1,
            "cancelled": 1,
            "released": 1,
            "lapsed": 0,
        }

    # -- dead letters ------------------------------------------------------------------------------------------------------

    @promise()
    async def test_dead_letters_come_oldest_first(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "b", "a", "c")
        assert [dead.id for dead in await room.broker.inspector.dead_letters(QUEUE)] == ["b", "a", "c"]

    @promise()
    async def test_dead_letters_come_in_pages(self, room: Room) -> None:
        await room.join("c")
        names = [f"n{n}" for n in range(7)]
        await room.die("c", *names)
        seen: list[str] = []
        cursor = ""
        while page := await room.broker.inspector.dead_letters(QUEUE, after=cursor, limit=3):
            assert len(page) <= 3
            seen += [dead.id for dead in page]
            cursor = page[-1].cursor
        assert seen == names

    @promise()
    async def test_a_cursor_outlives_its_letter(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", "b", "c")
        page = await room.broker.inspector.dead_letters(QUEUE, limit=2)
        await room.broker.purge(QUEUE, ["b"])
        later = await room.broker.inspector.dead_letters(QUEUE, after=page[-1].cursor)
        assert [dead.id for dead in later] == ["c"]

    @promise()
    async def test_a_letter_found_by_id_is_the_one_in_the_list(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", "b")
        listed = await room.broker.inspector.dead_letters(QUEUE)
        assert [await room.broker.inspector.dead_letter(QUEUE, name) for name in ("a", "b")] == listed

    @promise()
    async def test_there_is_no_letter_of_what_is_not_dead(self, room: Room) -> None:
        await room.publish("ready")
        assert await room.broker.inspector.dead_letter(QUEUE, "ready") is None
        assert await room.broker.inspector.dead_letter(QUEUE, "never") is None
        assert await room.broker.inspector.dead_letters("none") == []
