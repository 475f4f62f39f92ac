"""What an operator can do: cancel, pause, replay, purge, and see who works."""

from __future__ import annotations

from millstream.broker import Cancellation, Receipt, WorkerInfo
from millstream.broker.contract import CANCELLED_TTL
from millstream.outcome import Ending, Kind, decode_ending
from millstream.testing.room import DEAD_ENDING, DONE_ENDING, START, Promises, Room, eventually, ids, promise

CANCELLED, RUNNING, ENDED = Cancellation.CANCELLED, Cancellation.RUNNING, Cancellation.ENDED


def worker(name: str) -> WorkerInfo:
    return WorkerInfo(name, "host", 7, "0.1", ["q"], 1.5, {"done": 3})


class OperatingPromises(Promises):
    # -- cancel ------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_ready_job_can_be_cancelled(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b")
        assert await room.broker.cancel(room.queue, "a") is CANCELLED
        assert ids(await room.take("c")) == ["b"]

    @promise()
    async def test_a_scheduled_job_can_be_cancelled(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", delay=5)
        assert await room.broker.cancel(room.queue, "a") is CANCELLED
        room.at(5)
        claim = await room.claim("c")
        assert (claim.entries, claim.next_due) == ([], None)

    @promise()
    async def test_a_retry_that_waits_can_be_cancelled(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), Kind.RETRY, delay=5)
        assert await room.broker.cancel(room.queue, "a") is CANCELLED
        room.at(5)
        assert await room.take("c") == []

    @promise()
    async def test_a_released_job_can_be_cancelled(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.release("c", await room.take("c"))
        assert await room.broker.cancel(room.queue, "a") is CANCELLED
        assert await room.take("c") == []

    @promise()
    async def test_a_running_job_cannot_be_cancelled(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        entries = await room.take("c")
        assert await room.broker.cancel(room.queue, "a") is RUNNING
        assert await room.settle("c", entries) == 1

    @promise()
    async def test_a_job_whose_consumer_left_can_be_cancelled(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a")
        await room.take("c")
        await room.broker.leave(room.queue, "c")
        assert await room.broker.cancel(room.queue, "a") is CANCELLED
        assert await room.take("d") == []

    @promise()
    async def test_what_has_ended_or_never_was_cannot_be_cancelled(self, room: Room) -> None:
        await room.join("c")
        await room.publish("done")
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        await room.die("c", "dead")
        await room.publish("cancelled")
        await room.broker.cancel(room.queue, "cancelled")
        for job_id in ("done", "dead", "cancelled", "never"):
            assert await room.broker.cancel(room.queue, job_id) is ENDED
        assert await room.status("dead") == "dead"
        assert (await room.totals())["cancelled"] == 1

    @promise()
    async def test_a_cancelled_jobs_ending_says_so(self, room: Room) -> None:
        await room.publish("a")
        await room.broker.cancel(room.queue, "a")
        ending = await room.broker.results.get(room.queue, "a")
        assert ending is not None and decode_ending(ending) == Ending("cancelled", ttl=CANCELLED_TTL)
        assert await room.status("a") == "cancelled"

    @promise()
    async def test_a_cancelled_jobs_given_id_is_remembered(self, room: Room) -> None:
        await room.publish("a")
        await room.broker.cancel(room.queue, "a")
        assert await room.publish("a") == [Receipt.EXISTS]
        assert await room.publish("a", task="u") == [Receipt.CONFLICT]

    @promise()
    async def test_a_cancelled_job_makes_room(self, room: Room) -> None:
        await room.publish("a", "b", max_length=2)
        await room.broker.cancel(room.queue, "a")
        assert await room.publish("c", "d", max_length=2) == [Receipt.CREATED, Receipt.FULL]

    # -- pause -------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_paused_queue_gives_nothing_until_it_is_resumed(self, room: Room) -> None:
        await room.join("c")
        await room.broker.pause(room.queue)
        assert await room.publish("a") == [Receipt.CREATED]
        claim = await room.claim("c")
        assert (claim.entries, claim.paused) == ([], True)
        await room.broker.resume(room.queue)
        claim = await room.claim("c")
        assert (ids(claim.entries), claim.paused) == (["a"], False)

    @promise()
    async def test_a_paused_queue_gives_nothing_released_or_orphaned(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("released", "orphan")
        await room.release("c", (await room.take("c"))[:1])
        await room.broker.leave(room.queue, "c")
        await room.broker.pause(room.queue)
        assert await room.take("d") == []

    @promise()
    async def test_a_paused_queue_promotes_what_is_due(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", delay=5)
        await room.publish("b", delay=9)
        await room.broker.pause(room.queue)
        room.at(5)
        assert (await room.claim("c")).next_due == 4
        assert await room.status("a") == "ready"

    @promise()
    async def test_what_runs_when_a_queue_is_paused_can_be_settled_and_released(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b")
        a, b = await room.take("c")
        await room.broker.pause(room.queue)
        assert await room.settle("c", [a]) == 1
        assert await room.release("c", [b]) == 1

    @promise()
    async def test_pausing_and_resuming_twice_is_doing_it_once(self, room: Room) -> None:
        await room.join("c")
        await room.broker.pause(room.queue)
        await room.broker.pause(room.queue)
        await room.broker.resume(room.queue)
        assert not (await room.claim("c")).paused
        await room.broker.resume(room.queue)
        assert not (await room.claim("c")).paused

    @promise()
    async def test_a_paused_queue_pauses_no_other(self, room: Room) -> None:
        await room.join("c", queue=room.other_queue)
        await room.broker.pause(room.queue)
        await room.publish("a", queue=room.other_queue)
        assert ids(await room.take("c", queue=room.other_queue)) == ["a"]

    # -- promote -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_promoted_job_is_ready_at_once(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", delay=5)
        assert await room.broker.promote(room.queue, ["a"]) == ["a"]
        assert await room.status("a") == "ready"
        assert ids(await room.take("c")) == ["a"]
        room.at(5)
        claim = await room.claim("c")
        assert (claim.entries, claim.next_due) == ([], None)

    @promise()
    async def test_a_retry_that_waits_can_be_promoted_and_keeps_its_expiry(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", expires=60)
        await room.settle("c", await room.take("c"), Kind.RETRY, delay=30, body=b"a#again")
        await room.broker.promote(room.queue, ["a"])
        (entry,) = await room.take("c")
        assert (entry.body, entry.expires_ms) == (b"a#again", round((START + 60) * 1000))

    @promise()
    async def test_promoting_tells_which_were_scheduled(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "dead")
        await room.publish("running")
        await room.take("c")
        await room.publish("ready")
        await room.publish("b", "a", delay=5)
        assert await room.broker.promote(room.queue, ["b", "never", "dead", "running", "ready", "a", "b"]) == ["b", "a"]
        assert await room.broker.promote(room.queue, ["a"]) == []
        assert await room.broker.promote(room.queue, []) == []
        assert ids(await room.take("c")) == ["ready", "b", "a"]

    @promise()
    async def test_promoting_wakes_who_waits(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", delay=60)
        waiting = await room.begun(room.wait_for_work("c"))
        await room.broker.promote(room.queue, ["a"])
        assert ids(await waiting) == ["a"]

    # -- replay and purge --------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_replayed_job_runs_again_under_its_id(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", body=b"a#again")
        assert await room.broker.replay(room.queue, ["a"]) == ["a"]
        assert await room.status("a") == "ready"
        assert [(entry.body, entry.crashes) for entry in await room.take("c")] == [(b"a#again", 0)]
        assert await room.broker.inspector.dead_letters(room.queue) == []

    @promise()
    async def test_replaying_tells_which_were_dead(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", "b")
        await room.publish("ready")
        assert await room.broker.replay(room.queue, ["b", "ready", "never", "a"]) == ["b", "a"]
        assert await room.broker.replay(room.queue, ["a", "b"]) == []
        assert await room.broker.replay(room.queue, []) == []
        assert sorted(ids(await room.take("c"))) == ["a", "b", "ready"]

    @promise()
    async def test_a_replayed_job_goes_to_the_end_of_the_line(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", "b")
        await room.publish("ready")
        await room.broker.replay(room.queue, ["b", "a"])
        assert ids(await room.take("c")) == ["ready", "b", "a"]

    @promise()
    async def test_a_replayed_job_has_not_ended(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", result=DEAD_ENDING, result_ttl=600)
        await room.broker.replay(room.queue, ["a"])
        assert await room.broker.results.get(room.queue, "a") is None
        await room.settle("c", await room.take("c"))
        assert await room.status("a") == "unknown"

    @promise(id_ttl=0.5)
    async def test_a_replayed_jobs_given_id_is_remembered_while_it_lives(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a")
        assert await room.broker.replay(room.queue, ["a"]) == ["a"]
        remembered = await room.publish("a", task="u")
        await room.publish("b")
        b = [entry for entry in await room.take("c") if entry.body == b"b"]
        await room.settle("c", b, given_id=True)

        async def forgotten() -> bool:
            return await room.publish("b") == [Receipt.CREATED]

        await eventually(forgotten)
        # EXISTS if this was so slow that the id was forgotten before the replay; a job that lives always exists
        assert await room.publish("a", task="u") == remembered != [Receipt.CREATED]

    @promise()
    async def test_a_replayed_job_may_die_again(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", "b")
        await room.broker.replay(room.queue, ["a"])
        await room.settle("c", await room.take("c"), Kind.DEAD, given_id=True)
        assert [dead.id for dead in await room.broker.inspector.dead_letters(room.queue)] == ["b", "a"]
        assert (await room.totals())["dead"] == 3

    @promise()
    async def test_a_purged_letter_is_gone(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", "b")
        assert await room.broker.purge(room.queue, ["a", "never", "a"]) == ["a"]
        assert await room.broker.purge(room.queue, ["a"]) == []
        assert await room.broker.purge(room.queue, []) == []
        assert await room.status("a") == "unknown"
        assert await room.broker.inspector.dead_letter(room.queue, "a") is None
        assert await room.broker.replay(room.queue, ["a"]) == []
        assert [dead.id for dead in await room.broker.inspector.dead_letters(room.queue)] == ["b"]

    @promise()
    async def test_purging_touches_nothing_that_lives(self, room: Room) -> None:
        await room.publish("a")
        assert await room.broker.purge(room.queue, ["a"]) == []
        assert await room.status("a") == "ready"

    @promise()
    async def test_a_purged_jobs_ending_stays_while_it_is_kept(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", result=DEAD_ENDING, result_ttl=600)
        await room.broker.purge(room.queue, ["a"])
        assert await room.status("a") == "dead"
        assert await room.broker.results.get(room.queue, "a") == DEAD_ENDING

    # -- workers -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_registered_worker_is_seen_by_all(self, room: Room) -> None:
        await room.broker.register(worker("w2"), 60)
        await room.broker.register(worker("w1"), 60)
        other = await room.another()
        assert sorted(await other.inspector.workers(), key=lambda w: w.id) == [worker("w1"), worker("w2")]

    @promise()
    async def test_registering_again_replaces(self, room: Room) -> None:
        await room.broker.register(worker("w"), 60)
        newer = WorkerInfo("w", "host", 7, "0.1", ["q", "r"], 1.5, {"done": 4})
        await room.broker.register(newer, 60)
        assert await room.broker.inspector.workers() == [newer]

    @promise()
    async def test_an_unregistered_worker_is_gone(self, room: Room) -> None:
        await room.broker.register(worker("w"), 60)
        await room.broker.unregister("w")
        await room.broker.unregister("w")
        assert await room.broker.inspector.workers() == []

    @promise()
    async def test_a_worker_that_registers_no_more_is_gone_after_its_ttl(self, room: Room) -> None:
        await room.broker.register(worker("gone"), 0.05)
        await room.broker.register(worker("stays"), 600)

        async def alone() -> bool:
            return [w.id for w in await room.broker.inspector.workers()] == ["stays"]

        await eventually(alone)
