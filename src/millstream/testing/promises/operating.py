"""Promises to operators: cancel, pause, promote, replay, purge, and the registry of workers."""

from __future__ import annotations

from millstream.broker import Cancellation, Receipt, WorkerInfo
from millstream.broker.values import CANCELLED_TTL
from millstream.model.ending import Ending, decode_ending
from millstream.model.outcome import Kind
from millstream.testing.backend import DEAD_ENDING, DONE_ENDING, START, BackendUnderTest, Promises, eventually, ids, promise

CANCELLED, RUNNING, ENDED = Cancellation.CANCELLED, Cancellation.RUNNING, Cancellation.ENDED


def worker(name: str) -> WorkerInfo:
    return WorkerInfo(name, "host", 7, "0.1", ["q"], 1.5, {"done": 3})


class OperatingPromises(Promises):
    # -- cancel ------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_ready_job_can_be_cancelled(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b")
        assert await backend.broker.cancel(backend.queue, "a") is CANCELLED
        assert ids(await backend.take("c")) == ["b"]

    @promise()
    async def test_a_scheduled_job_can_be_cancelled(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", delay=5)
        assert await backend.broker.cancel(backend.queue, "a") is CANCELLED
        backend.at(5)
        claim = await backend.claim("c")
        assert (claim.entries, claim.next_due) == ([], None)

    @promise()
    async def test_a_scheduled_retry_can_be_cancelled(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), Kind.RETRY, delay=5)
        assert await backend.broker.cancel(backend.queue, "a") is CANCELLED
        backend.at(5)
        assert await backend.take("c") == []

    @promise()
    async def test_a_released_job_can_be_cancelled(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.release("c", await backend.take("c"))
        assert await backend.broker.cancel(backend.queue, "a") is CANCELLED
        assert await backend.take("c") == []

    @promise()
    async def test_a_running_job_cannot_be_cancelled(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        entries = await backend.take("c")
        assert await backend.broker.cancel(backend.queue, "a") is RUNNING
        assert await backend.settle("c", entries) == 1

    @promise()
    async def test_a_job_whose_consumer_left_can_be_cancelled(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a")
        await backend.take("c")
        await backend.broker.leave(backend.queue, "c")
        assert await backend.broker.cancel(backend.queue, "a") is CANCELLED
        assert await backend.take("d") == []

    @promise()
    async def test_a_job_that_has_ended_or_is_unknown_cannot_be_cancelled(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("done")
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        await backend.die("c", "dead")
        await backend.publish("cancelled")
        await backend.broker.cancel(backend.queue, "cancelled")
        for job_id in ("done", "dead", "cancelled", "never"):
            assert await backend.broker.cancel(backend.queue, job_id) is ENDED
        assert await backend.status("dead") == "dead"
        assert (await backend.totals())["cancelled"] == 1

    @promise()
    async def test_the_ending_of_a_cancelled_job_has_the_status_cancelled(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.broker.cancel(backend.queue, "a")
        ending = await backend.broker.results.get(backend.queue, "a")
        assert ending is not None and decode_ending(ending) == Ending("cancelled", ttl=CANCELLED_TTL)
        assert await backend.status("a") == "cancelled"

    @promise()
    async def test_the_given_id_of_a_cancelled_job_stays_in_use(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.broker.cancel(backend.queue, "a")
        assert await backend.publish("a") == [Receipt.EXISTS]
        assert await backend.publish("a", task="u") == [Receipt.CONFLICT]

    @promise()
    async def test_a_cancelled_job_no_longer_counts_towards_max_length(self, backend: BackendUnderTest) -> None:
        await backend.publish("a", "b", max_length=2)
        await backend.broker.cancel(backend.queue, "a")
        assert await backend.publish("c", "d", max_length=2) == [Receipt.CREATED, Receipt.FULL]

    # -- pause -------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_paused_queue_starts_no_job_until_it_is_resumed(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.broker.pause(backend.queue)
        assert await backend.publish("a") == [Receipt.CREATED]
        claim = await backend.claim("c")
        assert (claim.entries, claim.paused) == ([], True)
        await backend.broker.resume(backend.queue)
        claim = await backend.claim("c")
        assert (ids(claim.entries), claim.paused) == (["a"], False)

    @promise()
    async def test_a_paused_queue_redelivers_no_released_or_abandoned_job(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("released", "orphan")
        await backend.release("c", (await backend.take("c"))[:1])
        await backend.broker.leave(backend.queue, "c")
        await backend.broker.pause(backend.queue)
        assert await backend.take("d") == []

    @promise()
    async def test_a_paused_queue_still_promotes_due_jobs(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", delay=5)
        await backend.publish("b", delay=9)
        await backend.broker.pause(backend.queue)
        backend.at(5)
        assert (await backend.claim("c")).next_due == 4
        assert await backend.status("a") == "ready"

    @promise()
    async def test_running_jobs_of_a_paused_queue_can_be_settled_and_released(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b")
        a, b = await backend.take("c")
        await backend.broker.pause(backend.queue)
        assert await backend.settle("c", [a]) == 1
        assert await backend.release("c", [b]) == 1

    @promise()
    async def test_pausing_or_resuming_twice_has_no_further_effect(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.broker.pause(backend.queue)
        await backend.broker.pause(backend.queue)
        await backend.broker.resume(backend.queue)
        assert not (await backend.claim("c")).paused
        await backend.broker.resume(backend.queue)
        assert not (await backend.claim("c")).paused

    @promise()
    async def test_pausing_a_queue_does_not_pause_another(self, backend: BackendUnderTest) -> None:
        await backend.join("c", queue=backend.other_queue)
        await backend.broker.pause(backend.queue)
        await backend.publish("a", queue=backend.other_queue)
        assert ids(await backend.take("c", queue=backend.other_queue)) == ["a"]

    # -- promote -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_promoted_job_is_ready_immediately(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", delay=5)
        assert await backend.broker.promote(backend.queue, ["a"]) == ["a"]
        assert await backend.status("a") == "ready"
        assert ids(await backend.take("c")) == ["a"]
        backend.at(5)
        claim = await backend.claim("c")
        assert (claim.entries, claim.next_due) == ([], None)

    @promise()
    async def test_a_scheduled_retry_can_be_promoted_and_keeps_its_expiry(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", expires=60)
        await backend.settle("c", await backend.take("c"), Kind.RETRY, delay=30, body=b"a#again")
        await backend.broker.promote(backend.queue, ["a"])
        (entry,) = await backend.take("c")
        assert (entry.body, entry.expires_ms) == (b"a#again", round((START + 60) * 1000))

    @promise()
    async def test_promote_returns_the_ids_that_were_scheduled(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "dead")
        await backend.publish("running")
        await backend.take("c")
        await backend.publish("ready")
        await backend.publish("b", "a", delay=5)
        assert await backend.broker.promote(backend.queue, ["b", "never", "dead", "running", "ready", "a", "b"]) == ["b", "a"]
        assert await backend.broker.promote(backend.queue, ["a"]) == []
        assert await backend.broker.promote(backend.queue, []) == []
        assert ids(await backend.take("c")) == ["ready", "b", "a"]

    @promise()
    async def test_a_promotion_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", delay=60)
        waiting = await backend.begun(backend.wait_for_work("c"))
        await backend.broker.promote(backend.queue, ["a"])
        assert ids(await waiting) == ["a"]

    # -- replay and purge --------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_replayed_job_runs_again_under_its_old_id(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", body=b"a#again")
        assert await backend.broker.replay(backend.queue, ["a"]) == ["a"]
        assert await backend.status("a") == "ready"
        assert [(entry.body, entry.crashes) for entry in await backend.take("c")] == [(b"a#again", 0)]
        assert await backend.broker.inspector.dead_letters(backend.queue) == []

    @promise()
    async def test_replay_returns_the_ids_that_were_dead(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", "b")
        await backend.publish("ready")
        assert await backend.broker.replay(backend.queue, ["b", "ready", "never", "a"]) == ["b", "a"]
        assert await backend.broker.replay(backend.queue, ["a", "b"]) == []
        assert await backend.broker.replay(backend.queue, []) == []
        assert sorted(ids(await backend.take("c"))) == ["a", "b", "ready"]

    @promise()
    async def test_a_replayed_job_is_appended_to_the_queue(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", "b")
        await backend.publish("ready")
        await backend.broker.replay(backend.queue, ["b", "a"])
        assert ids(await backend.take("c")) == ["ready", "b", "a"]

    @promise()
    async def test_a_replay_deletes_the_ending_of_the_job(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", result=DEAD_ENDING, result_ttl=600)
        await backend.broker.replay(backend.queue, ["a"])
        assert await backend.broker.results.get(backend.queue, "a") is None
        await backend.settle("c", await backend.take("c"))
        assert await backend.status("a") == "unknown"

    @promise(id_ttl=0.5)
    async def test_the_given_id_of_a_replayed_job_stays_in_use_while_the_job_exists(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a")
        assert await backend.broker.replay(backend.queue, ["a"]) == ["a"]
        remembered = await backend.publish("a", task="u")
        await backend.publish("b")
        b = [entry for entry in await backend.take("c") if entry.body == b"b"]
        await backend.settle("c", b, given_id=True)

        async def forgotten() -> bool:
            return await backend.publish("b") == [Receipt.CREATED]

        await eventually(forgotten)
        # The first answer is normally CONFLICT. On a slow machine the id expires before the replay, and the answer is EXISTS.
        assert await backend.publish("a", task="u") == remembered != [Receipt.CREATED]

    @promise()
    async def test_a_replayed_job_may_die_again(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", "b")
        await backend.broker.replay(backend.queue, ["a"])
        await backend.settle("c", await backend.take("c"), Kind.DEAD, given_id=True)
        assert [dead.id for dead in await backend.broker.inspector.dead_letters(backend.queue)] == ["b", "a"]
        assert (await backend.totals())["dead"] == 3

    @promise()
    async def test_a_purged_dead_letter_is_deleted(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", "b")
        assert await backend.broker.purge(backend.queue, ["a", "never", "a"]) == ["a"]
        assert await backend.broker.purge(backend.queue, ["a"]) == []
        assert await backend.broker.purge(backend.queue, []) == []
        assert await backend.status("a") == "unknown"
        assert await backend.broker.inspector.dead_letter(backend.queue, "a") is None
        assert await backend.broker.replay(backend.queue, ["a"]) == []
        assert [dead.id for dead in await backend.broker.inspector.dead_letters(backend.queue)] == ["b"]

    @promise()
    async def test_a_purge_does_not_affect_jobs_that_are_not_dead(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        assert await backend.broker.purge(backend.queue, ["a"]) == []
        assert await backend.status("a") == "ready"

    @promise()
    async def test_a_purge_does_not_delete_the_ending_of_the_job(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", result=DEAD_ENDING, result_ttl=600)
        await backend.broker.purge(backend.queue, ["a"])
        assert await backend.status("a") == "dead"
        assert await backend.broker.results.get(backend.queue, "a") == DEAD_ENDING

    # -- workers -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_registered_worker_is_visible_to_other_processes(self, backend: BackendUnderTest) -> None:
        await backend.broker.register(worker("w2"), 60)
        await backend.broker.register(worker("w1"), 60)
        other = await backend.another()
        assert sorted(await other.inspector.workers(), key=lambda w: w.id) == [worker("w1"), worker("w2")]

    @promise()
    async def test_registering_a_worker_again_replaces_its_entry(self, backend: BackendUnderTest) -> None:
        await backend.broker.register(worker("w"), 60)
        newer = WorkerInfo("w", "host", 7, "0.1", ["q", "r"], 1.5, {"done": 4})
        await backend.broker.register(newer, 60)
        assert await backend.broker.inspector.workers() == [newer]

    @promise()
    async def test_an_unregistered_worker_is_no_longer_listed(self, backend: BackendUnderTest) -> None:
        await backend.broker.register(worker("w"), 60)
        await backend.broker.unregister("w")
        await backend.broker.unregister("w")
        assert await backend.broker.inspector.workers() == []

    @promise()
    async def test_a_worker_that_does_not_register_again_is_removed_after_its_ttl(self, backend: BackendUnderTest) -> None:
        await backend.broker.register(worker("gone"), 0.05)
        await backend.broker.register(worker("stays"), 600)

        async def alone() -> bool:
            return [w.id for w in await backend.broker.inspector.workers()] == ["stays"]

        await eventually(alone)
