"""What a producer can rely on."""

from __future__ import annotations

from millstream.broker import Post, Receipt
from millstream.outcome import Kind
from millstream.testing.room import DONE_ENDING, START, Promises, Room, eventually, ids, promise

CREATED, EXISTS, FULL, CONFLICT = Receipt.CREATED, Receipt.EXISTS, Receipt.FULL, Receipt.CONFLICT


class PublishingPromises(Promises):
    @promise()
    async def test_a_published_job_can_be_claimed(self, room: Room) -> None:
        await room.join("c")
        assert await room.publish("a") == [CREATED]
        assert ids(await room.take("c")) == ["a"]

    @promise()
    async def test_a_body_arrives_as_it_was_sent(self, room: Room) -> None:
        await room.join("c")
        body = bytes(range(256)) * 300
        await room.broker.publish(room.queue, [Post("a", body), Post("b", b"")])
        assert [entry.body for entry in await room.take("c")] == [body, b""]

    @promise()
    async def test_a_batch_is_accepted_in_order(self, room: Room) -> None:
        await room.join("c")
        names = [f"n{n}" for n in range(250)]
        await room.publish(*names)
        assert ids(await room.take("c", 1000)) == names

    @promise()
    async def test_an_empty_batch_has_no_receipts(self, room: Room) -> None:
        assert await room.publish() == []
        assert await room.send("s") == []
        assert (await room.totals())["published"] == 0

    # -- generated ids -----------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_serial_sent_again_exists(self, room: Room) -> None:
        assert await room.send("s", 1, 2) == [CREATED, CREATED]
        assert await room.send("s", 1, 2) == [EXISTS, EXISTS]
        assert (await room.broker.inspector.queue(room.queue)).ready == 2

    @promise()
    async def test_a_serial_sent_again_exists_though_its_job_left_nothing(self, room: Room) -> None:
        await room.join("c")
        await room.send("s", 1)
        await room.settle("c", await room.take("c"))
        assert await room.status("s-1") == "unknown"
        assert await room.send("s", 1) == [EXISTS]

    @promise()
    async def test_a_batch_that_overlaps_an_earlier_one_creates_the_rest(self, room: Room) -> None:
        await room.send("s", 1, 2)
        assert await room.send("s", 1, 2, 3) == [EXISTS, EXISTS, CREATED]

    @promise()
    async def test_a_serial_twice_in_a_batch_is_created_once(self, room: Room) -> None:
        assert await room.send("s", 1, 1, 2, 1) == [CREATED, EXISTS, CREATED, EXISTS]

    @promise()
    async def test_a_skipped_serial_is_not_taken_for_accepted(self, room: Room) -> None:
        assert await room.send("s", 1, 4) == [CREATED, CREATED]
        assert await room.send("s", 2, 3) == [CREATED, CREATED]
        assert await room.send("s", 1, 2, 3, 4) == [EXISTS] * 4

    @promise()
    async def test_a_gap_may_be_filled_from_its_middle(self, room: Room) -> None:
        assert await room.send("s", 9) == [CREATED]
        assert await room.send("s", 5) == [CREATED]
        assert await room.send("s", 5, 4, 6, 1, 8) == [EXISTS] + [CREATED] * 4
        assert await room.send("s", 2, 3, 7) == [CREATED] * 3
        assert await room.send("s", *range(1, 11)) == [EXISTS] * 9 + [CREATED]

    @promise()
    async def test_a_refused_serial_is_not_taken_for_accepted(self, room: Room) -> None:
        assert await room.send("s", 1, 2, 3, max_length=1) == [CREATED, FULL, FULL]
        assert await room.send("s", 3) == [CREATED]
        assert await room.send("s", 2) == [CREATED]
        assert await room.send("s", 1, 2, 3) == [EXISTS] * 3

    @promise()
    async def test_senders_do_not_know_each_other(self, room: Room) -> None:
        await room.send("s", 1, 2)
        assert await room.send("other", 1, 2) == [CREATED, CREATED]

    @promise()
    async def test_a_sender_counts_per_queue(self, room: Room) -> None:
        await room.send("s", 1)
        assert await room.send("s", 1, queue=room.other_queue) == [CREATED]

    @promise(id_ttl=0.05)
    async def test_a_sender_is_forgotten_id_ttl_after_its_last_call(self, room: Room) -> None:
        await room.join("c")
        await room.send("s", 1)
        await room.settle("c", await room.take("c"))

        async def forgotten() -> bool:
            return await room.publish("s-1") == [CREATED]

        await eventually(forgotten)
        assert await room.send("s", 1) == [CREATED]

    # -- given ids ---------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_given_id_exists_while_its_job_is_scheduled_ready_or_running(self, room: Room) -> None:
        await room.join("c")
        await room.publish("later", delay=10)
        await room.publish("running")
        await room.take("c")
        await room.publish("ready")
        assert await room.publish("later", "running", "ready") == [EXISTS] * 3
        assert (await room.totals())["published"] == 3

    @promise()
    async def test_a_given_id_twice_in_a_batch_is_created_once(self, room: Room) -> None:
        assert await room.publish("a", "a") == [CREATED, EXISTS]

    @promise()
    async def test_a_given_id_of_another_task_is_a_conflict(self, room: Room) -> None:
        await room.publish("a", task="t")
        assert await room.publish("a", task="u") == [CONFLICT]
        assert (await room.totals())["published"] == 1

    @promise()
    async def test_a_given_id_exists_for_id_ttl_after_its_job_ended(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), given_id=True)
        assert await room.publish("a") == [EXISTS]
        assert await room.publish("a", task="u") == [CONFLICT]

    @promise(id_ttl=0.05)
    async def test_a_given_id_is_free_id_ttl_after_its_job_ended(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), given_id=True)

        async def free() -> bool:
            return await room.publish("a", task="u") == [CREATED]

        await eventually(free)

    @promise(id_ttl=0.05)
    async def test_a_given_id_is_remembered_while_its_job_lives_however_long_that_is(self, room: Room) -> None:
        await room.join("c")
        await room.publish("alive")
        retried = await room.take("c")
        await room.settle("c", retried, Kind.RETRY, delay=1000, given_id=True)
        await room.publish("ended")
        await room.settle("c", await room.take("c"), given_id=True)

        async def forgotten() -> bool:
            return await room.publish("ended") == [CREATED]

        await eventually(forgotten)
        assert await room.publish("alive") == [EXISTS]
        assert await room.publish("alive", task="u") == [CONFLICT]

    @promise(id_ttl=0.05)
    async def test_a_given_id_exists_while_an_ending_is_kept_under_it(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b")
        for entry in await room.take("c"):
            result = DONE_ENDING if ids([entry]) == ["a"] else None
            await room.settle("c", [entry], given_id=True, result=result, result_ttl=600)

        async def forgotten() -> bool:
            return await room.publish("b") == [CREATED]

        await eventually(forgotten)
        assert await room.publish("a") == [EXISTS]

    @promise(id_ttl=0.05)
    async def test_a_given_id_exists_while_a_dead_letter_bears_it(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a")
        await room.publish("b")
        await room.settle("c", await room.take("c"), given_id=True)

        async def forgotten() -> bool:
            return await room.publish("b") == [CREATED]

        await eventually(forgotten)
        assert await room.publish("a") == [EXISTS]

    @promise()
    async def test_a_generated_id_given_by_a_caller_exists(self, room: Room) -> None:
        await room.join("c")
        await room.send("s-x", 1)
        assert await room.publish("s-x-1") == [EXISTS]
        await room.settle("c", await room.take("c"))
        assert await room.publish("s-x-1") == [EXISTS]

    @promise()
    async def test_a_given_id_that_only_looks_generated_is_created(self, room: Room) -> None:
        await room.send("s", 1, 3)
        looks = ["s-2", "s-4", "s-0", "s-", "s--1", "s", "-1", "r-1", "s-01", "s-1.0", "s-1e0", "s-0x1", "s- 1", "s-¹"]
        assert await room.publish(*looks) == [CREATED] * len(looks)

    @promise()
    async def test_a_given_id_may_be_any_printable_text(self, room: Room) -> None:
        await room.join("c")
        names = ["a b", "ü→", "a:b{c}", "%s", "x" * 200, "-", "0", "g-0"]
        assert await room.publish(*names) == [CREATED] * len(names)
        assert await room.publish(*names) == [EXISTS] * len(names)
        assert ids(await room.take("c")) == names

    # -- max_length --------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_full_queue_refuses(self, room: Room) -> None:
        assert await room.publish("a", "b", "c", max_length=2) == [CREATED, CREATED, FULL]
        assert await room.status("c") == "unknown"
        assert await room.publish("c", max_length=3) == [CREATED]

    @promise()
    async def test_max_length_counts_ready_running_and_scheduled_but_not_dead(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "dead")
        await room.publish("running")
        await room.take("c")
        await room.publish("ready")
        await room.publish("scheduled", delay=10)
        assert await room.publish("more", "most", max_length=4) == [CREATED, FULL]

    @promise()
    async def test_what_exists_exists_on_a_full_queue_too(self, room: Room) -> None:
        await room.publish("a")
        await room.send("s", 1)
        assert await room.publish("a", max_length=1) == [EXISTS]
        assert await room.publish("a", max_length=1, task="u") == [CONFLICT]
        assert await room.send("s", 1, max_length=1) == [EXISTS]

    @promise()
    async def test_a_refused_given_id_is_not_remembered(self, room: Room) -> None:
        assert await room.publish("a", max_length=0) == [FULL]
        assert await room.publish("a", task="u") == [CREATED]

    # -- due times and expiry ----------------------------------------------------------------------------------------------

    @promise()
    async def test_a_delayed_job_waits_until_it_is_due(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", delay=10)
        assert await room.status("a") == "scheduled"
        room.at(9.5)
        assert await room.take("c") == []
        room.at(10)
        assert ids(await room.take("c")) == ["a"]

    @promise()
    async def test_a_job_may_be_due_at_a_moment(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", at=START + 5)
        room.at(4.5)
        assert await room.take("c") == []
        room.at(5)
        assert ids(await room.take("c")) == ["a"]

    @promise()
    async def test_a_job_due_now_or_before_is_ready_at_once(self, room: Room) -> None:
        await room.publish("now", at=START)
        await room.publish("before", at=START - 100)
        assert [await room.status("now"), await room.status("before")] == ["ready", "ready"]

    @promise()
    async def test_a_claim_says_when_a_job_expires(self, room: Room) -> None:
        await room.join("c")
        await room.publish("never")
        await room.publish("in", expires=1.5)
        await room.publish("at", expires_at=START + 2.5)
        expected = [0, int((START + 1.5) * 1000), int((START + 2.5) * 1000)]
        assert [entry.expires_ms for entry in await room.take("c")] == expected

    @promise()
    async def test_an_expiry_survives_being_scheduled(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", delay=5, expires=7)
        room.at(5)
        assert [entry.expires_ms for entry in await room.take("c")] == [int((START + 7) * 1000)]

    @promise()
    async def test_an_expired_job_is_still_handed_out_for_a_worker_to_settle(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", expires=1)
        room.at(2)
        claim = await room.claim("c")
        assert ids(claim.entries) == ["a"]
        assert claim.now_ms >= claim.entries[0].expires_ms

    # -- several queues ----------------------------------------------------------------------------------------------------

    @promise()
    async def test_queues_do_not_know_each_other(self, room: Room) -> None:
        await room.join("c")
        await room.join("c", queue=room.other_queue)
        await room.publish("a")
        assert await room.publish("a", queue=room.other_queue, task="u") == [CREATED]
        await room.settle("c", await room.take("c"), given_id=True)
        assert await room.status("a", room.other_queue) == "ready"
        assert ids(await room.take("c", queue=room.other_queue)) == ["a"]
        assert await room.publish("b", queue=room.other_queue, max_length=2) == [CREATED]
