"""Promises about named requests: a request that is sent again changes nothing and returns its first answer."""

from __future__ import annotations

import pytest

from millstream.broker import Cancellation, Post, Receipt
from millstream.broker.values import BEGINNING, cancelled_by
from millstream.errors import ShardsInUse
from millstream.model.address import Address
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise
from millstream.testing.keyed import KEY, finish_all, send
from millstream.testing.promises.stopping import stop
from millstream.testing.topic import TOPIC, A, B, begin, emit, finish

CANCELLED, ENDED = Cancellation.CANCELLED, Cancellation.ENDED
CREATED, EXISTS = Receipt.CREATED, Receipt.EXISTS


class RequestPromises(Promises):
    """Promises of a queue, and therefore of a group."""

    @promise()
    async def test_a_cancel_sent_again_returns_cancelled_again(self, backend: BackendUnderTest) -> None:
        await backend.publish("now")
        await backend.publish("later", delay=5)
        for job_id in ("now", "later"):
            for _ in range(2):
                assert await backend.broker.cancel(backend.queue, job_id, request="r") is CANCELLED
            assert await backend.broker.cancel(backend.queue, job_id, request="another") is ENDED
            assert await backend.broker.cancel(backend.queue, job_id) is ENDED
        assert (await backend.totals())["cancelled"] == 2

    @promise()
    async def test_a_second_cancel_without_a_request_name_returns_ended(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        assert await backend.broker.cancel(backend.queue, "a") is CANCELLED
        assert await backend.broker.cancel(backend.queue, "a") is ENDED
        assert await backend.broker.results.get(backend.queue, "a") == cancelled_by("")

    @promise()
    async def test_cancelling_a_batch_returns_one_result_per_job(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("runs")
        await backend.take("c")
        await backend.publish("a", "b")
        await backend.publish("later", delay=5)
        answers = await backend.broker.cancel_many(backend.queue, ["a", "runs", "nobody", "later", "a"])
        assert answers == [CANCELLED, Cancellation.RUNNING, ENDED, CANCELLED, ENDED]
        assert (await backend.totals())["cancelled"] == 2
        assert ids(await backend.take("c")) == ["b"]
        assert await backend.broker.cancel_many(backend.queue, []) == []

    @promise()
    async def test_the_turn_skips_cancelled_jobs_of_a_key(self, backend: BackendUnderTest) -> None:
        await backend.join("c", lease=1e6)
        await send(backend, "1", "2", "3", "4")
        (first,) = await backend.take("c")
        await backend.release("c", [first])
        assert await backend.broker.cancel_many(backend.queue, ["2", "4"]) == [CANCELLED, CANCELLED]
        (first,) = await backend.take("c")
        await backend.settle("c", [first])
        assert ids(await backend.take("c")) == ["3"]

    @promise()
    async def test_publishing_a_given_id_again_with_the_same_request_returns_created(self, backend: BackendUnderTest) -> None:
        for delay in (0.0, 5.0):
            name = f"a{delay}"
            assert await backend.publish(name, request="7", delay=delay) == [CREATED]
            assert await backend.publish(name, request="7", delay=delay) == [CREATED]
            assert await backend.publish(name, request="other", delay=delay) == [EXISTS]
            assert await backend.publish(name, delay=delay) == [EXISTS]
            assert await backend.publish(name, request="7", task="another", delay=delay) == [Receipt.CONFLICT]
        state = await backend.broker.inspector.queue(backend.queue)
        assert (state.ready, state.scheduled, state.totals["published"]) == (1, 1, 2)

    @promise()
    async def test_the_creating_request_gets_created_even_after_the_job_has_ended(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", request="r")
        await backend.settle("c", await backend.take("c"), given_id=True)
        assert await backend.publish("a", request="r") == [CREATED]
        assert await backend.publish("a", request="other") == [EXISTS]
        assert await backend.take("c") == []

    @promise()
    async def test_a_promotion_sent_again_returns_its_first_answer(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", delay=5)
        asked = ["nobody", "a"]
        assert await backend.broker.promote(backend.queue, asked, request="r") == ["a"]
        assert await backend.broker.promote(backend.queue, asked, request="r") == ["a"]
        assert await backend.broker.promote(backend.queue, asked, request="other") == []
        assert ids(await backend.take("c")) == ["a"]

    @promise()
    async def test_a_replay_sent_again_returns_its_first_answer_and_replays_no_newer_dead_letter(
        self, backend: BackendUnderTest
    ) -> None:
        await backend.join("c")
        await backend.die("c", "a", "b")
        assert await backend.broker.replay(backend.queue, ["a", "nobody"], request="r") == ["a"]
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        assert await backend.broker.replay(backend.queue, ["a", "nobody"], request="r") == ["a"]
        assert await backend.status("a") == "dead"
        assert await backend.broker.replay(backend.queue, ["a"], request="other") == ["a"]

    @promise()
    async def test_a_purge_sent_again_returns_its_first_answer(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", "b")
        for _ in range(2):
            assert await backend.broker.purge(backend.queue, ["nobody", "a"], request="r") == ["a"]
        assert await backend.broker.purge(backend.queue, ["a", "b"], request="other") == ["b"]

    @promise()
    async def test_a_request_that_changed_nothing_is_processed_again(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        assert await backend.broker.purge(backend.queue, ["a"], request="r") == []
        await backend.die("c", "a")
        assert await backend.broker.purge(backend.queue, ["a"], request="r") == ["a"]

    @promise()
    async def test_a_clear_sent_again_returns_its_first_answer_and_clears_no_newer_stop(
        self, backend: BackendUnderTest
    ) -> None:
        for replay, put_back in ((True, 3), (False, 0)):
            name = f"{replay}"
            await stop(backend, *(f"{name}{n}" for n in range(3)), key=name.encode())
            for _ in range(2):
                cleared = await backend.broker.clear_key(backend.queue, name.encode(), replay=replay, request=name)
                assert cleared == put_back
            assert await backend.broker.clear_key(backend.queue, name.encode(), replay=replay, request="other") is None
            assert await backend.broker.clear_key(backend.queue, name.encode(), replay=replay) is None
            await finish_all(backend)

    @promise()
    async def test_a_clear_of_many_dead_letters_sent_again_counts_all_of_them(self, backend: BackendUnderTest) -> None:
        await stop(backend, *(str(n) for n in range(1200)))
        while await backend.take("c") or (await backend.broker.inspector.queue(backend.queue)).dead < 1200:
            pass
        for _ in range(2):
            assert await backend.broker.clear_key(backend.queue, KEY, replay=True, request="r") == 1200


class TopicRequestPromises(Promises):
    @promise()
    async def test_emitting_a_given_id_again_with_the_same_request_returns_created(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        for delay in (0.0, 5.0):
            name = f"e{delay:g}"
            assert await emit(backend, name, request="7", delay=delay) == [CREATED]
            assert await emit(backend, name, request="7", delay=delay) == [CREATED]
            assert await emit(backend, name, request="other", delay=delay) == [EXISTS]
            assert await emit(backend, name, delay=delay) == [EXISTS]
        assert await finish(backend, "a") == ["e0"]
        backend.at(5)
        assert await finish(backend, "a") == ["e5"]

    @promise()
    async def test_a_seek_sent_again_moves_the_group_once(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep=1e6)
        await emit(backend, "1", "2")
        assert await finish(backend, "a") == ["1", "2"]
        assert await backend.broker.seek(A, BEGINNING, request="r")
        assert await finish(backend, "a") == ["1", "2"]
        assert await backend.broker.seek(A, BEGINNING, request="r")
        assert await finish(backend, "a") == []
        assert await backend.broker.seek(A, BEGINNING, request="other")
        assert await finish(backend, "a") == ["1", "2"]

    @promise()
    async def test_a_group_removal_sent_again_returns_true_again(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        for _ in range(2):
            assert await backend.broker.remove_group(A, request="r")
        assert not await backend.broker.remove_group(A, request="other")
        assert not await backend.broker.remove_group(A)
        assert await backend.broker.remove_group(B)

    @promise()
    async def test_a_prefix_removal_sent_again_returns_true_again(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_topic(TOPIC, {})
        await backend.broker.open_prefix("ord", "a", BEGINNING)
        for _ in range(2):
            assert await backend.broker.remove_prefix("ord", "a", request="r")
        assert not await backend.broker.remove_prefix("ord", "a", request="other")
        assert not await backend.broker.remove_group(Address.of_group(TOPIC, "a"))

    @promise()
    async def test_resharding_to_the_current_number_succeeds_whatever_the_shards_contain(
        self, backend: BackendUnderTest
    ) -> None:
        await backend.broker.reshard(Address("mail"), 2)
        queue = Address("mail").at_shard(1)
        assert await backend.broker.publish(queue, [Post("a", b"")], shards=2) == [CREATED]
        await backend.broker.reshard(Address("mail"), 2)
        assert await backend.broker.publish(queue, [Post("b", b"")], shards=2) == [CREATED]

    @promise()
    async def test_an_interrupted_reshard_checks_the_queue_when_it_is_sent_again(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.publish(Address("mail"), [Post("whole", b"")]) == [CREATED]
        for shard in range(2):
            await backend.broker.fence_shard(Address("mail").at_shard(shard), 0)
        await backend.broker.note_shards(Address("mail"), 2, replace=True)
        with pytest.raises(ShardsInUse, match="1 ready"):
            await backend.broker.reshard(Address("mail"), 2)
        assert await backend.broker.publish(Address("mail"), [Post("another", b"")]) == [CREATED]
