"""Promises about ``max_pending``: how many messages may be blocked behind a message that waits for a retry."""

from __future__ import annotations

from millstream.broker import OrderRules
from millstream.model.outcome import Kind
from millstream.testing.backend import START, BackendUnderTest, Promises, ids, promise
from millstream.testing.keyed import blocked, dead, finish_all, retry, send, take_all


async def begin(backend: BackendUnderTest, *names: str, max_pending: int = 2, stop: bool = False) -> None:
    """Join a consumer with these order rules, and publish messages of one key."""
    await backend.broker.join(backend.queue, "c", 1e6, order=OrderRules(stop, max_pending))
    await send(backend, *names)


class PendingPromises(Promises):
    @promise()
    async def test_messages_beyond_max_pending_behind_a_retry_die(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1")
        await retry(backend, (await backend.take("c"))[0])
        await send(backend, "2", "3", "4", "5")
        assert await take_all(backend) == []
        assert await blocked(backend) == ["2", "3"]
        assert await dead(backend, "pending_full") == ["4", "5"]
        assert await backend.status("4") == "dead"

    @promise()
    async def test_any_number_of_messages_may_be_blocked_behind_a_running_one(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2", "3", "4", "5")
        assert ids(await take_all(backend)) == ["1"]
        assert await blocked(backend) == ["2", "3", "4", "5"]

    @promise()
    async def test_any_number_of_messages_may_be_blocked_behind_a_released_one(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2", "3", "4", "5")
        await backend.release("c", await backend.take("c", 1))
        assert ids(await take_all(backend)) == ["1"]
        assert (await blocked(backend), await dead(backend)) == (["2", "3", "4", "5"], [])

    @promise()
    async def test_messages_blocked_before_the_retry_are_kept_beyond_max_pending(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2", "3", "4")
        (first,) = await take_all(backend)
        await retry(backend, first)
        await send(backend, "5")
        assert await take_all(backend) == []
        assert (await blocked(backend), await dead(backend)) == (["2", "3", "4"], ["5"])
        backend.at(5)
        assert await finish_all(backend) == ["1", "2", "3", "4"]

    @promise()
    async def test_any_number_of_messages_may_be_blocked_once_the_retry_is_running(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2", "3")
        (first,) = await take_all(backend)
        await retry(backend, first)
        backend.at(5)
        assert ids(await backend.take("c")) == ["1"]
        await send(backend, "4", "5")
        assert await take_all(backend) == []
        assert (await blocked(backend), await dead(backend)) == (["2", "3", "4", "5"], [])

    @promise()
    async def test_max_pending_does_not_affect_other_keys(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1")
        await retry(backend, (await backend.take("c"))[0])
        await send(backend, "x1", "x2", "x3", "x4", key=b"x")
        await send(backend, "n1", "n2", "n3", key=None)
        assert ids(await take_all(backend)) == ["x1", "n1", "n2", "n3"]
        assert (await blocked(backend), await dead(backend)) == (["x2", "x3", "x4"], [])

    @promise()
    async def test_with_max_pending_zero_every_message_behind_a_retry_dies(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", max_pending=0)
        await retry(backend, (await backend.take("c"))[0])
        await send(backend, "2")
        assert await take_all(backend) == []
        assert await dead(backend, "pending_full") == ["2"]

    @promise()
    async def test_max_pending_is_1000_by_default(self, backend: BackendUnderTest) -> None:
        await backend.join("c", lease=1e6)
        await send(backend, "1")
        await retry(backend, (await backend.take("c"))[0])
        for start in range(0, 1002, 167):
            await send(backend, *[f"n{n}" for n in range(start, start + 167)])
        assert await take_all(backend) == []
        assert (await backend.broker.inspector.queue(backend.queue)).blocked == 1000
        assert await dead(backend, "pending_full") == ["n1000", "n1001"]

    @promise()
    async def test_the_dead_letter_of_a_message_beyond_max_pending_names_the_reason(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", max_pending=0)
        await retry(backend, (await backend.take("c"))[0])
        await send(backend, "2")
        await take_all(backend)
        (letter,) = await backend.broker.inspector.dead_letters(backend.queue)
        assert (letter.reason, letter.error.type, letter.attempts, letter.crashes, letter.enqueued_ms) == (
            "pending_full",
            "OrderError",
            0,
            0,
            0,
        )
        assert letter.error.message
        assert (letter.id, letter.task, letter.body, letter.key, letter.died_at) == ("2", "t", b"2", b"k", START)
        assert (await backend.totals())["dead"] == 1

    @promise()
    async def test_a_message_beyond_max_pending_can_be_replayed_to_its_old_position(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2", max_pending=1)
        (first,) = await take_all(backend)
        await retry(backend, first)
        await send(backend, "3")
        await take_all(backend)
        backend.at(5)
        again = await backend.take("c")
        await send(backend, "4")
        await take_all(backend)
        assert await backend.broker.replay(backend.queue, ["3"]) == ["3"]
        await take_all(backend)
        assert await blocked(backend) == ["2", "3", "4"]
        await backend.settle("c", again)
        assert await finish_all(backend) == ["2", "3", "4"]

    @promise()
    async def test_a_message_beyond_max_pending_does_not_stop_its_key(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", max_pending=0, stop=True)
        await retry(backend, (await backend.take("c"))[0])
        await send(backend, "2")
        await take_all(backend)
        assert await backend.broker.inspector.stopped_keys(backend.queue) == []
        backend.at(5)
        await backend.settle("c", await backend.take("c"))
        await send(backend, "3")
        assert ids(await backend.take("c")) == ["3"]

    @promise()
    async def test_the_last_max_pending_that_was_set_applies(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", max_pending=0)
        await backend.join("d")
        await backend.broker.join(backend.queue, "e", 30, order=OrderRules(max_pending=1))
        await retry(backend, (await backend.take("c"))[0])
        await send(backend, "2", "3")
        await take_all(backend)
        assert (await blocked(backend), await dead(backend)) == (["2"], ["3"])

    @promise(dead_max_count=2)
    async def test_dead_max_count_limits_dead_letters_of_messages_beyond_max_pending(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", max_pending=0)
        await retry(backend, (await backend.take("c"))[0])
        await send(backend, "2", "3", "4", "5")
        await take_all(backend)
        await backend.broker.renew(backend.queue, {"c": 1e6})
        assert await dead(backend) == ["4", "5"]

    @promise()
    async def test_after_a_retry_dies_new_messages_of_its_key_are_accepted_again(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", max_pending=0)
        await retry(backend, (await backend.take("c"))[0])
        backend.at(5)
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        await send(backend, "2", "3")
        assert ids(await take_all(backend)) == ["2"]
        assert await blocked(backend) == ["3"]
