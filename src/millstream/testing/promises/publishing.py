"""Promises about publishing."""

from __future__ import annotations

from millstream.broker import Post, Receipt
from millstream.model.outcome import Kind
from millstream.testing.backend import DONE_ENDING, START, BackendUnderTest, Promises, eventually, ids, promise

CREATED, EXISTS, FULL, CONFLICT = Receipt.CREATED, Receipt.EXISTS, Receipt.FULL, Receipt.CONFLICT


class PublishingPromises(Promises):
    @promise()
    async def test_a_published_job_can_be_claimed(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        assert await backend.publish("a") == [CREATED]
        assert ids(await backend.take("c")) == ["a"]

    @promise()
    async def test_a_body_arrives_unchanged(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        body = bytes(range(256)) * 300
        await backend.broker.publish(backend.queue, [Post("a", body), Post("b", b"")])
        assert [entry.body for entry in await backend.take("c")] == [body, b""]

    @promise()
    async def test_a_batch_is_accepted_in_order(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        names = [f"n{n}" for n in range(250)]
        await backend.publish(*names)
        assert ids(await backend.take("c", 1000)) == names

    @promise()
    async def test_publishing_an_empty_batch_returns_no_receipts(self, backend: BackendUnderTest) -> None:
        assert await backend.publish() == []
        assert await backend.send("s") == []
        assert (await backend.totals())["published"] == 0

    # -- generated ids -----------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_serial_sent_again_returns_exists(self, backend: BackendUnderTest) -> None:
        assert await backend.send("s", 1, 2) == [CREATED, CREATED]
        assert await backend.send("s", 1, 2) == [EXISTS, EXISTS]
        assert (await backend.broker.inspector.queue(backend.queue)).ready == 2

    @promise()
    async def test_a_serial_sent_again_returns_exists_even_if_its_job_left_nothing_behind(
        self, backend: BackendUnderTest
    ) -> None:
        await backend.join("c")
        await backend.send("s", 1)
        await backend.settle("c", await backend.take("c"))
        assert await backend.status("s-1") == "unknown"
        assert await backend.send("s", 1) == [EXISTS]

    @promise()
    async def test_a_batch_that_overlaps_an_earlier_one_creates_only_the_new_jobs(self, backend: BackendUnderTest) -> None:
        await backend.send("s", 1, 2)
        assert await backend.send("s", 1, 2, 3) == [EXISTS, EXISTS, CREATED]

    @promise()
    async def test_a_serial_listed_twice_in_a_batch_is_created_once(self, backend: BackendUnderTest) -> None:
        assert await backend.send("s", 1, 1, 2, 1) == [CREATED, EXISTS, CREATED, EXISTS]

    @promise()
    async def test_a_skipped_serial_can_still_be_created(self, backend: BackendUnderTest) -> None:
        assert await backend.send("s", 1, 4) == [CREATED, CREATED]
        assert await backend.send("s", 2, 3) == [CREATED, CREATED]
        assert await backend.send("s", 1, 2, 3, 4) == [EXISTS] * 4

    @promise()
    async def test_skipped_serials_can_be_created_in_any_order(self, backend: BackendUnderTest) -> None:
        assert await backend.send("s", 9) == [CREATED]
        assert await backend.send("s", 5) == [CREATED]
        assert await backend.send("s", 5, 4, 6, 1, 8) == [EXISTS] + [CREATED] * 4
        assert await backend.send("s", 2, 3, 7) == [CREATED] * 3
        assert await backend.send("s", *range(1, 11)) == [EXISTS] * 9 + [CREATED]

    @promise()
    async def test_a_refused_serial_can_still_be_created(self, backend: BackendUnderTest) -> None:
        assert await backend.send("s", 1, 2, 3, max_length=1) == [CREATED, FULL, FULL]
        assert await backend.send("s", 3) == [CREATED]
        assert await backend.send("s", 2) == [CREATED]
        assert await backend.send("s", 1, 2, 3) == [EXISTS] * 3

    @promise()
    async def test_each_sender_has_its_own_serials(self, backend: BackendUnderTest) -> None:
        await backend.send("s", 1, 2)
        assert await backend.send("other", 1, 2) == [CREATED, CREATED]

    @promise()
    async def test_a_sender_has_separate_serials_per_queue(self, backend: BackendUnderTest) -> None:
        await backend.send("s", 1)
        assert await backend.send("s", 1, queue=backend.other_queue) == [CREATED]

    @promise(id_ttl=0.05)
    async def test_a_sender_is_forgotten_id_ttl_after_its_last_call(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.send("s", 1)
        await backend.settle("c", await backend.take("c"))

        async def forgotten() -> bool:
            return await backend.publish("s-1") == [CREATED]

        await eventually(forgotten)
        assert await backend.send("s", 1) == [CREATED]

    # -- given ids ---------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_given_id_is_in_use_while_its_job_is_scheduled_ready_or_running(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("later", delay=10)
        await backend.publish("running")
        await backend.take("c")
        await backend.publish("ready")
        assert await backend.publish("later", "running", "ready") == [EXISTS] * 3
        assert (await backend.totals())["published"] == 3

    @promise()
    async def test_a_given_id_listed_twice_in_a_batch_is_created_once(self, backend: BackendUnderTest) -> None:
        assert await backend.publish("a", "a") == [CREATED, EXISTS]

    @promise()
    async def test_a_given_id_used_by_another_task_is_a_conflict(self, backend: BackendUnderTest) -> None:
        await backend.publish("a", task="t")
        assert await backend.publish("a", task="u") == [CONFLICT]
        assert (await backend.totals())["published"] == 1

    @promise()
    async def test_a_given_id_stays_in_use_for_id_ttl_after_its_job_has_ended(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), given_id=True)
        assert await backend.publish("a") == [EXISTS]
        assert await backend.publish("a", task="u") == [CONFLICT]

    @promise(id_ttl=0.05)
    async def test_a_given_id_is_free_after_id_ttl(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), given_id=True)

        async def free() -> bool:
            return await backend.publish("a", task="u") == [CREATED]

        await eventually(free)

    @promise(id_ttl=0.05)
    async def test_a_given_id_stays_in_use_as_long_as_its_job_exists(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("alive")
        retried = await backend.take("c")
        await backend.settle("c", retried, Kind.RETRY, delay=1000, given_id=True)
        await backend.publish("ended")
        await backend.settle("c", await backend.take("c"), given_id=True)

        async def forgotten() -> bool:
            return await backend.publish("ended") == [CREATED]

        await eventually(forgotten)
        assert await backend.publish("alive") == [EXISTS]
        assert await backend.publish("alive", task="u") == [CONFLICT]

    @promise(id_ttl=0.05)
    async def test_a_given_id_stays_in_use_while_its_ending_is_stored(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b")
        for entry in await backend.take("c"):
            result = DONE_ENDING if ids([entry]) == ["a"] else None
            await backend.settle("c", [entry], given_id=True, result=result, result_ttl=600)

        async def forgotten() -> bool:
            return await backend.publish("b") == [CREATED]

        await eventually(forgotten)
        assert await backend.publish("a") == [EXISTS]

    @promise(id_ttl=0.05)
    async def test_a_given_id_stays_in_use_while_its_dead_letter_exists(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a")
        await backend.publish("b")
        await backend.settle("c", await backend.take("c"), given_id=True)

        async def forgotten() -> bool:
            return await backend.publish("b") == [CREATED]

        await eventually(forgotten)
        assert await backend.publish("a") == [EXISTS]

    # -- id_ttl of one job -------------------------------------------------------------------------------------------------

    @promise()
    async def test_an_id_with_id_ttl_zero_is_free_once_its_job_is_done_and_reuse_deletes_its_ending(
        self, backend: BackendUnderTest
    ) -> None:
        await backend.join("c")
        assert await backend.publish("a", id_ttl=0.0) == [CREATED]
        assert await backend.publish("a", id_ttl=0.0) == [EXISTS]
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=600.0, given_id=True)
        assert await backend.status("a") == "done"
        assert await backend.publish("a", id_ttl=0.0) == [CREATED]
        assert await backend.status("a") == "ready"
        assert await backend.broker.results.get(backend.queue, "a") is None

    @promise()
    async def test_an_id_with_id_ttl_zero_is_free_for_another_task_without_an_id_ttl(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", id_ttl=0.0)
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=600.0, given_id=True)
        assert await backend.publish("a", task="other") == [CREATED]
        assert await backend.publish("a", id_ttl=0.0) == [CONFLICT]

    @promise()
    async def test_an_id_with_id_ttl_zero_is_free_once_its_job_is_cancelled_or_expired(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b", id_ttl=0.0)
        await backend.broker.cancel(backend.queue, "a")
        assert await backend.publish("a", id_ttl=0.0) == [CREATED]
        entries = [entry for entry in await backend.take("c") if ids([entry]) == ["b"]]
        await backend.settle("c", entries, Kind.EXPIRED, given_id=True)
        assert await backend.publish("b", id_ttl=0.0) == [CREATED]

    @promise()
    async def test_a_dead_job_with_id_ttl_zero_keeps_its_id_until_it_is_purged(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", id_ttl=0.0)
        await backend.settle("c", await backend.take("c"), Kind.DEAD, given_id=True)
        assert await backend.publish("a", id_ttl=0.0) == [EXISTS]
        assert await backend.publish("a", task="other") == [CONFLICT]
        assert await backend.broker.purge(backend.queue, ["a"]) == ["a"]
        assert await backend.publish("a", task="other") == [CREATED]

    @promise()
    async def test_a_replayed_job_with_id_ttl_zero_keeps_its_id_until_it_is_done(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", id_ttl=0.0)
        await backend.settle("c", await backend.take("c"), Kind.DEAD, given_id=True)
        await backend.broker.replay(backend.queue, ["a"])
        assert await backend.publish("a", id_ttl=0.0) == [EXISTS]
        await backend.settle("c", await backend.take("c"), given_id=True)
        assert await backend.publish("a", id_ttl=0.0) == [CREATED]

    @promise()
    async def test_a_request_sent_again_after_its_id_became_free_creates_no_job(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", id_ttl=0.0, request="first")
        await backend.settle("c", await backend.take("c"), given_id=True)
        assert await backend.publish("a", id_ttl=0.0, request="first") == [CREATED]
        assert await backend.take("c") == []
        assert await backend.publish("a", id_ttl=0.0, request="second") == [CREATED]
        assert ids(await backend.take("c")) == ["a"]

    @promise(id_ttl=0.05)
    async def test_the_id_ttl_of_a_job_may_be_longer_than_the_default(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("long", id_ttl=3600.0)
        await backend.publish("short")
        await backend.settle("c", await backend.take("c"), given_id=True)

        async def is_free() -> bool:
            return await backend.publish("short") == [CREATED]

        await eventually(is_free)
        assert await backend.publish("long") == [EXISTS]

    @promise()
    async def test_the_id_ttl_of_a_job_may_be_shorter_than_the_default(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", id_ttl=0.05)
        await backend.settle("c", await backend.take("c"), given_id=True)

        async def is_free() -> bool:
            return await backend.publish("a") == [CREATED]

        await eventually(is_free)

    @promise()
    async def test_a_caller_cannot_reuse_a_generated_id(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.send("s-x", 1)
        assert await backend.publish("s-x-1") == [EXISTS]
        await backend.settle("c", await backend.take("c"))
        assert await backend.publish("s-x-1") == [EXISTS]

    @promise()
    async def test_a_given_id_that_only_looks_like_a_generated_one_is_accepted(self, backend: BackendUnderTest) -> None:
        await backend.send("s", 1, 3)
        looks = ["s-2", "s-4", "s-0", "s-", "s--1", "s", "-1", "r-1", "s-01", "s-1.0", "s-1e0", "s-0x1", "s- 1", "s-¹"]
        assert await backend.publish(*looks) == [CREATED] * len(looks)

    @promise()
    async def test_a_given_id_may_be_any_printable_text(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        names = ["a b", "ü→", "a:b{c}", "%s", "x" * 200, "-", "0", "g-0"]
        assert await backend.publish(*names) == [CREATED] * len(names)
        assert await backend.publish(*names) == [EXISTS] * len(names)
        assert ids(await backend.take("c")) == names

    # -- max_length --------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_queue_at_max_length_refuses_new_jobs(self, backend: BackendUnderTest) -> None:
        assert await backend.publish("a", "b", "c", max_length=2) == [CREATED, CREATED, FULL]
        assert await backend.status("c") == "unknown"
        assert await backend.publish("c", max_length=3) == [CREATED]

    @promise()
    async def test_max_length_counts_ready_running_and_scheduled_but_not_dead(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "dead")
        await backend.publish("running")
        await backend.take("c")
        await backend.publish("ready")
        await backend.publish("scheduled", delay=10)
        assert await backend.publish("more", "most", max_length=4) == [CREATED, FULL]

    @promise()
    async def test_a_full_queue_still_recognises_ids_that_are_in_use(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.send("s", 1)
        assert await backend.publish("a", max_length=1) == [EXISTS]
        assert await backend.publish("a", max_length=1, task="u") == [CONFLICT]
        assert await backend.send("s", 1, max_length=1) == [EXISTS]

    @promise()
    async def test_a_refused_given_id_is_not_remembered(self, backend: BackendUnderTest) -> None:
        assert await backend.publish("a", max_length=0) == [FULL]
        assert await backend.publish("a", task="u") == [CREATED]

    # -- due times and expiry ----------------------------------------------------------------------------------------------

    @promise()
    async def test_a_delayed_job_waits_until_it_is_due(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", delay=10)
        assert await backend.status("a") == "scheduled"
        backend.at(9.5)
        assert await backend.take("c") == []
        backend.at(10)
        assert ids(await backend.take("c")) == ["a"]

    @promise()
    async def test_a_job_may_be_scheduled_for_a_given_time(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", at=START + 5)
        backend.at(4.5)
        assert await backend.take("c") == []
        backend.at(5)
        assert ids(await backend.take("c")) == ["a"]

    @promise()
    async def test_a_job_due_now_or_earlier_is_ready_immediately(self, backend: BackendUnderTest) -> None:
        await backend.publish("now", at=START)
        await backend.publish("before", at=START - 100)
        assert [await backend.status("now"), await backend.status("before")] == ["ready", "ready"]

    @promise()
    async def test_a_claimed_entry_says_when_its_job_expires(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("never")
        await backend.publish("in", expires=1.5)
        await backend.publish("at", expires_at=START + 2.5)
        expected = [0, int((START + 1.5) * 1000), int((START + 2.5) * 1000)]
        assert [entry.expires_ms for entry in await backend.take("c")] == expected

    @promise()
    async def test_a_scheduled_job_keeps_its_expiry(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", delay=5, expires=7)
        backend.at(5)
        assert [entry.expires_ms for entry in await backend.take("c")] == [int((START + 7) * 1000)]

    @promise()
    async def test_an_expired_job_is_still_delivered_so_that_a_worker_can_settle_it(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", expires=1)
        backend.at(2)
        claim = await backend.claim("c")
        assert ids(claim.entries) == ["a"]
        assert claim.now_ms >= claim.entries[0].expires_ms

    # -- several queues ----------------------------------------------------------------------------------------------------

    @promise()
    async def test_queues_are_independent_of_each_other(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.join("c", queue=backend.other_queue)
        await backend.publish("a")
        assert await backend.publish("a", queue=backend.other_queue, task="u") == [CREATED]
        await backend.settle("c", await backend.take("c"), given_id=True)
        assert await backend.status("a", backend.other_queue) == "ready"
        assert ids(await backend.take("c", queue=backend.other_queue)) == ["a"]
        assert await backend.publish("b", queue=backend.other_queue, max_length=2) == [CREATED]
