"""Promises about suspects: messages that may crash their consumer run alone."""

from __future__ import annotations

from millstream.broker import Cancellation
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise


class SuspectPromises(Promises):
    @promise()
    async def test_a_message_is_no_suspect_after_one_crash(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=1)
        await backend.join("c")
        claim = await backend.claim("c")
        assert (ids(claim.entries), claim.suspects) == (["a"], False)

    @promise()
    async def test_a_message_is_set_aside_as_a_suspect_after_two_crashes(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=2)
        await backend.publish("b")
        await backend.join("c")
        claim = await backend.claim("c")
        assert (ids(claim.entries), claim.suspects) == (["b"], True)
        assert await backend.status("a") == "ready"

    @promise()
    async def test_suspects_that_are_set_aside_do_not_count_towards_a_claim(self, backend: BackendUnderTest) -> None:
        await backend.publish("a", "b", "c")
        await backend.crash("x", lives=2)
        await backend.publish("d", "e")
        await backend.join("c")
        assert ids(await backend.take("c", 1)) == ["d"]

    @promise()
    async def test_the_claim_decides_how_many_crashes_make_a_suspect(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=1)
        await backend.join("c")
        claim = await backend.claim("c", suspect_after=1)
        assert (claim.entries, claim.suspects) == ([], True)

    @promise()
    async def test_a_claim_with_alone_takes_one_suspect_at_a_time_in_order(self, backend: BackendUnderTest) -> None:
        await backend.publish("a", "b")
        await backend.crash("x", lives=2)
        await backend.join("c")
        await backend.claim("c")
        first = await backend.claim("c", alone=True)
        assert ([(e.body, e.crashes) for e in first.entries], first.suspects) == ([(b"a", 2)], True)
        second = await backend.claim("c", 1, alone=True)
        assert ([(e.body, e.crashes) for e in second.entries], second.suspects) == ([(b"b", 2)], False)

    @promise()
    async def test_a_claim_with_alone_takes_only_suspects(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        assert await backend.take("c", alone=True) == []
        await backend.release("c", await backend.take("c"))
        assert await backend.take("c", alone=True) == []

    @promise()
    async def test_a_claim_with_alone_and_count_zero_takes_nothing(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=2)
        await backend.join("c")
        await backend.claim("c")
        assert await backend.take("c", 0, alone=True) == []

    @promise()
    async def test_every_claim_reports_waiting_suspects(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=2)
        await backend.join("c", "d")
        await backend.claim("c")
        assert (await backend.claim("d")).suspects
        assert (await backend.claim("d", 0)).suspects
        await backend.broker.pause(backend.queue)
        assert (await backend.claim("d")).suspects
        assert await backend.take("d", alone=True) == []
        await backend.broker.resume(backend.queue)
        assert len(await backend.take("d", alone=True)) == 1
        assert not (await backend.claim("c")).suspects

    @promise()
    async def test_a_suspect_can_be_settled(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=2)
        await backend.join("c")
        await backend.claim("c")
        assert await backend.settle("c", await backend.take("c", alone=True)) == 1

    @promise()
    async def test_a_suspect_that_crashes_another_consumer_is_set_aside_again(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=2)
        await backend.join("c", "d")
        await backend.claim("c")
        await backend.take("c", alone=True)
        await backend.broker.leave(backend.queue, "c")
        claim = await backend.claim("d")
        assert (claim.entries, claim.suspects) == ([], True)
        assert [entry.crashes for entry in await backend.take("d", alone=True)] == [3]

    @promise()
    async def test_a_released_suspect_stays_a_suspect_and_counts_no_crash(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=2)
        await backend.join("c")
        await backend.claim("c")
        await backend.release("c", await backend.take("c", alone=True))
        assert await backend.status("a") == "ready"
        claim = await backend.claim("c")
        assert (claim.entries, claim.suspects) == ([], True)
        assert [entry.crashes for entry in await backend.take("c", alone=True)] == [2]

    @promise()
    async def test_a_suspect_can_be_cancelled(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=2)
        await backend.join("c")
        await backend.claim("c")
        assert await backend.broker.cancel(backend.queue, "a") is Cancellation.CANCELLED
        assert not (await backend.claim("c")).suspects

    @promise()
    async def test_a_retried_suspect_is_no_longer_a_suspect(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=2)
        await backend.join("c")
        await backend.claim("c")
        await backend.settle("c", await backend.take("c", alone=True), Kind.RETRY)
        assert [entry.crashes for entry in await backend.take("c")] == [0]
