"""Promises about blocked messages: how claims skip them, how they are replayed, and how they are listed."""

from __future__ import annotations

from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise
from millstream.testing.keyed import begin, blocked, finish_all, retry, send, take_all


class BlockedPromises(Promises):
    # -- blocking ----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_claim_returns_the_first_message_of_every_key(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        keys = [b"%d" % n for n in range(50)]
        for round_ in range(3):
            for key in keys:
                await send(backend, f"{round_}-{key.decode()}", key=key)
        assert ids(await take_all(backend)) == [f"0-{n}" for n in range(50)]

    @promise()
    async def test_a_claim_finds_messages_behind_blocked_ones(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1")
        await send(backend, *[f"n{n}" for n in range(600)])
        await send(backend, "free", key=None)
        await send(backend, "other", key=b"other")
        assert ids(await take_all(backend)) == ["free", "other"]

    @promise()
    async def test_blocked_messages_do_not_count_towards_a_claim(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1")
        await send(backend, "2", "3")
        await send(backend, "x", "y", "z", key=None)
        assert ids(await take_all(backend, count=2)) == ["x", "y"]
        assert ids(await take_all(backend, count=2)) == ["z"]

    @promise()
    async def test_a_claim_with_count_zero_blocks_nothing(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1")
        await send(backend, "2")
        await backend.claim("c", 0)
        assert (await backend.broker.inspector.queue(backend.queue)).blocked == 0

    @promise()
    async def test_a_claim_on_a_paused_queue_returns_nothing_and_blocks_nothing(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await send(backend, "3")
        await backend.broker.pause(backend.queue)
        await backend.settle("c", [first])
        assert await backend.take("c") == []
        state = await backend.broker.inspector.queue(backend.queue)
        assert (state.ready, state.blocked) == (2, 0)
        await backend.broker.resume(backend.queue)
        assert await finish_all(backend) == ["2", "3"]

    @promise()
    async def test_turns_passed_on_by_one_settle_follow_the_order_of_its_outcomes(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        for key in (b"a", b"b", b"d"):
            await send(backend, f"{key.decode()}1", f"{key.decode()}2", key=key)
        a, b, d = await take_all(backend)
        assert await backend.settle("c", [d, a, b]) == 3
        assert ids(await backend.take("c")) == ["d2", "a2", "b2"]

    @promise()
    async def test_a_turn_that_is_passed_on_ends_a_wait(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await backend.join("d")
        waiting = await backend.begun(backend.wait_for_work("d"))
        await backend.settle("c", [first])
        assert ids(await waiting) == ["2"]

    @promise()
    async def test_a_message_that_was_blocked_arrives_unchanged(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1")
        await send(backend, "2", expires=60)
        assert await backend.take("c") == []
        await backend.settle("c", [first])
        (second,) = await backend.take("c")
        assert (second.body, second.crashes, second.expires_ms) == (b"2", 0, 1_800_000_060_000)

    @promise()
    async def test_a_message_that_expires_while_blocked_is_delivered_and_passes_the_turn_on(
        self, backend: BackendUnderTest
    ) -> None:
        first = await begin(backend, "1")
        await send(backend, "2", expires=1)
        await send(backend, "3")
        await backend.take("c")
        backend.at(10)
        assert await blocked(backend) == ["2", "3"]
        await backend.settle("c", [first])
        second = await backend.take("c")
        assert ids(second) == ["2"]
        await backend.settle("c", second, Kind.EXPIRED)
        assert ids(await backend.take("c")) == ["3"]

    @promise()
    async def test_a_delayed_message_is_ordered_by_its_due_time(self, backend: BackendUnderTest) -> None:
        await backend.join("c", lease=1e6)
        await send(backend, "late", delay=5)
        await send(backend, "1", "2")
        first = await backend.take("c")
        assert ids(first) == ["1"]
        backend.at(5)
        assert await backend.take("c") == []
        await send(backend, "3")
        await backend.settle("c", first)
        assert await finish_all(backend) == ["2", "late", "3"]

    @promise()
    async def test_a_scheduled_message_does_not_have_the_turn(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await send(backend, "late", delay=5)
        await send(backend, "1")
        assert ids(await backend.take("c")) == ["1"]

    # -- dead letters --------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_dead_letter_contains_its_ordering_key(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await send(backend, "1", key=b"\xff\n\0")
        await send(backend, "2", key=b"")
        await send(backend, "3", key=None)
        await backend.settle("c", await take_all(backend), Kind.DEAD)
        letters = await backend.broker.inspector.dead_letters(backend.queue)
        assert [letter.key for letter in letters] == [b"\xff\n\0", b"", None]
        one = await backend.broker.inspector.dead_letter(backend.queue, "1")
        assert one is not None and one.key == b"\xff\n\0"

    @promise()
    async def test_a_replayed_message_gets_its_old_position_among_the_blocked_ones(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2", "3", "4")
        await backend.settle("c", [first], Kind.DEAD)
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        third = await backend.take("c")
        assert ids(third) == ["3"]
        await send(backend, "5")
        assert await backend.broker.replay(backend.queue, ["2", "1"]) == ["2", "1"]
        assert await take_all(backend) == []
        assert await blocked(backend) == ["1", "2", "4", "5"]
        await backend.settle("c", third)
        assert await finish_all(backend) == ["1", "2", "4", "5"]

    @promise()
    async def test_messages_replayed_together_are_delivered_in_their_old_order(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2", "3")
        await backend.settle("c", [first], Kind.DEAD)
        for _ in range(2):
            await backend.settle("c", await backend.take("c"), Kind.DEAD)
        assert await backend.broker.replay(backend.queue, ["3", "1", "2"]) == ["3", "1", "2"]
        assert await finish_all(backend) == ["1", "2", "3"]

    @promise()
    async def test_a_message_that_died_after_retries_is_replayed_to_its_original_position(
        self, backend: BackendUnderTest
    ) -> None:
        first = await begin(backend, "1", "2", "3")
        await retry(backend, first, delay=1)
        backend.at(1)
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        second = await backend.take("c")
        assert ids(second) == ["2"]
        await backend.broker.replay(backend.queue, ["1"])
        assert await take_all(backend) == []
        assert await blocked(backend) == ["1", "3"]

    @promise()
    async def test_a_message_replayed_while_its_key_is_free_gets_the_turn(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1")
        await backend.settle("c", [first], Kind.DEAD)
        await backend.broker.replay(backend.queue, ["1"])
        await send(backend, "2")
        assert ids(await take_all(backend)) == ["1"]

    @promise()
    async def test_a_replayed_message_that_dies_again_passes_the_turn_on(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1")
        await backend.settle("c", [first], Kind.DEAD)
        await backend.broker.replay(backend.queue, ["1"])
        again = await backend.take("c")
        await send(backend, "2")
        assert await backend.take("c") == []
        await backend.settle("c", again, Kind.DEAD)
        assert ids(await backend.take("c")) == ["2"]

    # -- inspection ----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_blocked_messages_are_counted_separately(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2", "3")
        state = await backend.broker.inspector.queue(backend.queue)
        assert (state.ready, state.running, state.scheduled, state.blocked) == (0, 1, 0, 2)
        assert await backend.status("2") == "blocked"

    @promise()
    async def test_a_blocked_message_that_gets_the_turn_is_ready(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2", "3")
        await backend.settle("c", [first])
        state = await backend.broker.inspector.queue(backend.queue)
        assert (state.ready, state.running, state.blocked) == (1, 0, 1)
        assert (await backend.status("2"), await backend.status("3")) == ("ready", "blocked")

    @promise()
    async def test_blocked_messages_are_listed_by_key_and_then_in_order(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        for number, name in enumerate(("b", "a", "ab", "b", "a", "ab", "a", "b")):
            await send(backend, f"{name}{number}", key=name.encode())
        assert ids(await take_all(backend)) == ["b0", "a1", "ab2"]
        views = await backend.broker.inspector.jobs(backend.queue, "blocked")
        assert [view.body.decode() for view in views] == ["a4", "a6", "ab5", "b3", "b7"]
        assert {view.status for view in views} == {"blocked"}

    @promise()
    async def test_blocked_messages_are_listed_in_pages(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        for number in range(9):
            await send(backend, f"{number}", key=b"%d\n" % (number % 3))
        await take_all(backend)
        found: list[bytes] = []
        after = ""
        while page := await backend.broker.inspector.jobs(backend.queue, "blocked", after=after, limit=2):
            assert len(page) <= 2
            found += [view.body for view in page]
            after = page[-1].cursor
        assert found == [b"3", b"6", b"4", b"7", b"5", b"8"]

    @promise()
    async def test_the_view_of_a_blocked_message_is_complete(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1")
        await send(backend, "2", expires=60)
        await backend.take("c")
        view = await backend.broker.inspector.job(backend.queue, "2")
        assert view is not None
        assert (view.id, view.status, view.body, view.expires_at) == ("2", "blocked", b"2", 1_800_000_060.0)
