"""Messages that may kill their consumer run with nothing beside them."""

from __future__ import annotations

from millstream.broker import Cancellation
from millstream.outcome import Kind
from millstream.testing.room import Promises, Room, ids, promise


class SuspectPromises(Promises):
    @promise()
    async def test_a_first_crash_makes_no_suspect(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=1)
        await room.join("c")
        claim = await room.claim("c")
        assert (ids(claim.entries), claim.suspects) == (["a"], False)

    @promise()
    async def test_after_two_crashes_a_message_is_set_aside(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=2)
        await room.publish("b")
        await room.join("c")
        claim = await room.claim("c")
        assert (ids(claim.entries), claim.suspects) == (["b"], True)
        assert await room.status("a") == "ready"

    @promise()
    async def test_setting_aside_does_not_use_up_the_count(self, room: Room) -> None:
        await room.publish("a", "b", "c")
        await room.crash("x", lives=2)
        await room.publish("d", "e")
        await room.join("c")
        assert ids(await room.take("c", 1)) == ["d"]

    @promise()
    async def test_the_number_of_crashes_that_makes_a_suspect_is_the_claimers(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=1)
        await room.join("c")
        claim = await room.claim("c", suspect_after=1)
        assert (claim.entries, claim.suspects) == ([], True)

    @promise()
    async def test_a_claim_alone_takes_one_suspect_at_a_time_in_order(self, room: Room) -> None:
        await room.publish("a", "b")
        await room.crash("x", lives=2)
        await room.join("c")
        await room.claim("c")
        first = await room.claim("c", alone=True)
        assert ([(e.body, e.crashes) for e in first.entries], first.suspects) == ([(b"a", 2)], True)
        second = await room.claim("c", 1, alone=True)
        assert ([(e.body, e.crashes) for e in second.entries], second.suspects) == ([(b"b", 2)], False)

    @promise()
    async def test_a_claim_alone_takes_only_suspects(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        assert await room.take("c", alone=True) == []
        await room.release("c", await room.take("c"))
        assert await room.take("c", alone=True) == []

    @promise()
    async def test_a_claim_of_none_alone_takes_nothing(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=2)
        await room.join("c")
        await room.claim("c")
        assert await room.take("c", 0, alone=True) == []

    @promise()
    async def test_every_claim_tells_of_suspects_while_there_are_any(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=2)
        await room.join("c", "d")
        await room.claim("c")
        assert (await room.claim("d")).suspects
        assert (await room.claim("d", 0)).suspects
        await room.broker.pause(room.queue)
        assert (await room.claim("d")).suspects
        assert await room.take("d", alone=True) == []
        await room.broker.resume(room.queue)
        assert len(await room.take("d", alone=True)) == 1
        assert not (await room.claim("c")).suspects

    @promise()
    async def test_a_suspect_can_be_settled(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=2)
        await room.join("c")
        await room.claim("c")
        assert await room.settle("c", await room.take("c", alone=True)) == 1

    @promise()
    async def test_a_suspect_that_kills_again_is_set_aside_again(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=2)
        await room.join("c", "d")
        await room.claim("c")
        await room.take("c", alone=True)
        await room.broker.leave(room.queue, "c")
        claim = await room.claim("d")
        assert (claim.entries, claim.suspects) == ([], True)
        assert [entry.crashes for entry in await room.take("d", alone=True)] == [3]

    @promise()
    async def test_a_released_suspect_stays_a_suspect_and_counts_no_crash(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=2)
        await room.join("c")
        await room.claim("c")
        await room.release("c", await room.take("c", alone=True))
        assert await room.status("a") == "ready"
        claim = await room.claim("c")
        assert (claim.entries, claim.suspects) == ([], True)
        assert [entry.crashes for entry in await room.take("c", alone=True)] == [2]

    @promise()
    async def test_a_suspect_can_be_cancelled(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=2)
        await room.join("c")
        await room.claim("c")
        assert await room.broker.cancel(room.queue, "a") is Cancellation.CANCELLED
        assert not (await room.claim("c")).suspects

    @promise()
    async def test_a_retried_suspect_begins_anew(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=2)
        await room.join("c")
        await room.claim("c")
        await room.settle("c", await room.take("c", alone=True), Kind.RETRY)
        assert [entry.crashes for entry in await room.take("c")] == [0]
