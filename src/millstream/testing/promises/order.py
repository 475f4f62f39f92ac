"""Promises about order: messages of one key are delivered one at a time and in order, whatever happens to them."""

from __future__ import annotations

import pytest

from millstream.broker.values import SUSPECT_AFTER
from millstream.errors import LeaseLost
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise
from millstream.testing.keyed import begin, blocked, dead, finish_all, retry, send, take_all
from millstream.testing.promises.leases import lapse

ODD_KEYS = [b"", b"\0", b"\n", b"/", b":", b"a", b"a\0", b"ab", b"{a}", b"\xff\xfe", "né".encode(), b"0", b"0-0", b"!released"]


class OrderPromises(Promises):
    # -- the turn ----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_only_one_message_of_a_key_is_delivered_at_a_time(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await send(backend, "1", "2", "3")
        assert ids(await backend.take("c")) == ["1"]
        assert await backend.take("d") == []
        assert await backend.take("c") == []

    @promise()
    async def test_messages_of_a_key_are_delivered_in_the_order_of_publishing(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        names = [f"{n:02}" for n in range(20)]
        await send(backend, *names)
        assert await finish_all(backend) == names

    @promise()
    async def test_a_done_message_passes_the_turn_on(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2", "3")
        assert await backend.settle("c", [first]) == 1
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_a_dead_message_passes_the_turn_on(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2", "3")
        assert await backend.settle("c", [first], Kind.DEAD) == 1
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_an_expired_message_passes_the_turn_on(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2", "3")
        assert await backend.settle("c", [first], Kind.EXPIRED) == 1
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_the_last_message_of_a_key_leaves_the_key_free(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1")
        await backend.settle("c", [first])
        await send(backend, "2")
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_keys_do_not_wait_for_each_other(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a1", "a2", key=b"a")
        await send(backend, "b1", "b2", key=b"b")
        assert ids(await backend.take("c")) == ["b1"]

    @promise()
    async def test_messages_without_a_key_are_never_blocked_and_block_nothing(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2")
        await send(backend, "x", "y", "z", key=None)
        entries = await backend.take("c")
        assert ids(entries) == ["x", "y", "z"]
        await send(backend, "other", key=b"other")
        assert ids(await backend.take("c")) == ["other"]

    @promise()
    async def test_any_bytes_are_a_key_and_different_bytes_are_different_keys(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        for round_ in ("first", "second"):
            for number, key in enumerate(ODD_KEYS):
                await send(backend, f"{round_}{number}", key=key)
        entries = await take_all(backend)
        assert ids(entries) == [f"first{number}" for number in range(len(ODD_KEYS))]
        assert len(await blocked(backend)) == len(ODD_KEYS)
        await backend.settle("c", entries)
        assert ids(await take_all(backend)) == [f"second{number}" for number in range(len(ODD_KEYS))]

    @promise()
    async def test_the_turn_applies_across_processes(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        other = await backend.another()
        await other.join(backend.queue, "d", 30)
        assert (await other.claim(backend.queue, "d", 10)).entries == []
        await backend.settle("c", [first])
        assert ids((await other.claim(backend.queue, "d", 10)).entries) == ["2"]

    # -- a message keeps the turn ------------------------------------------------------------------------------------------

    @promise()
    async def test_a_released_message_keeps_the_turn(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await backend.join("d")
        await backend.release("c", [first])
        assert ids(await backend.take("d")) == ["1"]

    @promise()
    async def test_a_message_whose_consumer_left_keeps_the_turn(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2")
        await backend.join("d")
        await backend.broker.leave(backend.queue, "c")
        assert [(entry.body, entry.crashes) for entry in await backend.take("d")] == [(b"1", 1)]
        assert await backend.take("d") == []

    @promise()
    async def test_a_message_whose_consumer_left_blamelessly_keeps_the_turn(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2")
        await backend.join("d")
        await backend.broker.leave(backend.queue, "c", blameless=True)
        assert [(entry.body, entry.crashes) for entry in await backend.take("d")] == [(b"1", 0)]
        assert await backend.take("d") == []

    @promise()
    async def test_a_message_whose_consumer_lapsed_keeps_the_turn(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await send(backend, "1", "2")
        await backend.take("c")
        await lapse(backend, lease=10, watcher="d")
        assert [(entry.body, entry.crashes) for entry in await backend.take("d")] == [(b"1", 1)]
        assert await backend.take("d") == []

    @promise()
    async def test_a_suspect_keeps_the_turn(self, backend: BackendUnderTest) -> None:
        await send(backend, "1", "2")
        await backend.crash("x", lives=SUSPECT_AFTER)
        await backend.join("c")
        claim = await backend.claim("c")
        assert (claim.entries, claim.suspects) == ([], True)
        alone = await backend.take("c", alone=True)
        assert ids(alone) == ["1"]
        await backend.settle("c", alone)
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_a_message_whose_claim_reply_was_lost_keeps_the_turn(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        assert await backend.broker.recover(backend.queue, "c", []) == [first]
        await backend.settle("c", [first])
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_a_settle_sent_twice_passes_the_turn_on_once(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2", "3")
        assert [await backend.settle("c", [first]) for _ in range(2)] == [1, 0]
        assert ids(await backend.take("c")) == ["2"]
        assert await backend.settle("c", [first]) == 0
        assert await backend.take("c") == []

    @promise()
    async def test_settling_an_old_delivery_does_not_pass_the_turn_on(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await retry(backend, first, delay=0)
        for kind in Kind:
            assert await backend.settle("c", [first], kind) == 0
        again = await backend.take("c")
        assert ids(again) == ["1"]
        for kind in Kind:
            assert await backend.settle("c", [first], kind) == 0
        assert await backend.take("c") == []
        assert await backend.settle("c", [*again, first]) == 1
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_a_settle_after_a_lost_lease_does_not_pass_the_turn_on(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await backend.join("d")
        await backend.broker.leave(backend.queue, "c")
        for kind in Kind:
            with pytest.raises(LeaseLost):
                await backend.settle("c", [first], kind)
        assert ids(await backend.take("d")) == ["1"]
        assert await backend.take("d") == []

    # -- retries -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_message_that_waits_for_a_retry_keeps_the_turn(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await retry(backend, first, delay=5)
        await send(backend, "3")
        assert await backend.take("c") == []
        backend.at(5)
        again = await backend.take("c")
        assert ids(again) == ["1"]
        await backend.settle("c", again)
        assert await finish_all(backend) == ["2", "3"]

    @promise()
    async def test_a_retry_without_delay_keeps_the_turn(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await send(backend, "3")
        await retry(backend, first, delay=0)
        assert ids(await backend.take("c")) == ["1"]

    @promise()
    async def test_a_retry_that_is_ready_keeps_the_turn(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await retry(backend, first)
        await send(backend, "3")
        backend.at(5)
        await backend.claim("c", 0)
        assert ids(await take_all(backend, count=1)) == ["1"]
        assert await take_all(backend) == []
        assert await blocked(backend) == ["2", "3"]

    @promise()
    async def test_a_promoted_retry_keeps_the_turn(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await retry(backend, first, delay=1000)
        await send(backend, "3")
        assert await backend.broker.promote(backend.queue, ["1"]) == ["1"]
        again = await backend.take("c")
        assert ids(again) == ["1"]
        await backend.settle("c", again)
        assert await finish_all(backend) == ["2", "3"]

    @promise()
    async def test_a_retry_blocks_only_its_key(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "a1", "a2", key=b"a")
        await retry(backend, first)
        await send(backend, "b1", "b2", key=b"b")
        await send(backend, "free", key=None)
        assert await finish_all(backend) == ["b1", "free", "b2"]

    @promise()
    async def test_a_retry_keeps_the_turn_after_its_consumer_has_left(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await retry(backend, first, body=b"1#second")
        await backend.broker.leave(backend.queue, "c")
        await backend.join("d")
        assert await backend.take("d") == []
        backend.at(5)
        assert [entry.body for entry in await backend.take("d")] == [b"1#second"]

    @promise()
    async def test_order_is_kept_through_releases_crashes_retries_and_deaths(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2", "3", "4")
        await backend.release("c", [first])
        (again,) = await backend.take("c")
        await retry(backend, again, delay=1)
        backend.at(1)
        await backend.take("c")
        await backend.broker.leave(backend.queue, "c")
        await backend.join("d", lease=1e6)
        await send(backend, "5")
        taken_over = await backend.take("d")
        assert [(entry.body, entry.crashes) for entry in taken_over] == [(b"1", 1)]
        await backend.settle("d", taken_over)
        await backend.settle("d", await backend.take("d"), Kind.DEAD)
        assert await finish_all(backend, "d") == ["3", "4", "5"]
        assert await dead(backend) == ["2"]
