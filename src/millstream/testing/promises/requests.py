"""Requests with a name: sent again after a lost reply, they change nothing more and give their first answer."""

from __future__ import annotations

import pytest

from millstream.address import group_address, shard_name
from millstream.broker import Cancellation, Post, Receipt
from millstream.broker.contract import BEGINNING, cancelled_by
from millstream.errors import ShardsInUse
from millstream.outcome import Kind
from millstream.testing.keyed import KEY, finish_all, send
from millstream.testing.promises.stopping import stop
from millstream.testing.room import Promises, Room, ids, promise
from millstream.testing.topic import TOPIC, A, B, begin, emit, finish

CANCELLED, ENDED = Cancellation.CANCELLED, Cancellation.ENDED
CREATED, EXISTS = Receipt.CREATED, Receipt.EXISTS


class RequestPromises(Promises):
    """Of a queue, and so of a group."""

    @promise()
    async def test_a_cancel_sent_again_says_cancelled_again(self, room: Room) -> None:
        await room.publish("now")
        await room.publish("later", delay=5)
        for job_id in ("now", "later"):
            for _ in range(2):
                assert await room.broker.cancel(room.queue, job_id, request="r") is CANCELLED
            assert await room.broker.cancel(room.queue, job_id, request="another") is ENDED
            assert await room.broker.cancel(room.queue, job_id) is ENDED
        assert (await room.totals())["cancelled"] == 2

    @promise()
    async def test_a_cancel_without_a_name_is_told_of_no_other(self, room: Room) -> None:
        await room.publish("a")
        assert await room.broker.cancel(room.queue, "a") is CANCELLED
        assert await room.broker.cancel(room.queue, "a") is ENDED
        assert await room.broker.results.get(room.queue, "a") == cancelled_by("")

    @promise()
    async def test_a_batch_is_cancelled_and_each_is_answered(self, room: Room) -> None:
        await room.join("c")
        await room.publish("runs")
        await room.take("c")
        await room.publish("a", "b")
        await room.publish("later", delay=5)
        answers = await room.broker.cancel_many(room.queue, ["a", "runs", "nobody", "later", "a"])
        assert answers == [CANCELLED, Cancellation.RUNNING, ENDED, CANCELLED, ENDED]
        assert (await room.totals())["cancelled"] == 2
        assert ids(await room.take("c")) == ["b"]
        assert await room.broker.cancel_many(room.queue, []) == []

    @promise()
    async def test_a_batch_of_a_key_passes_its_turn_on(self, room: Room) -> None:
        await room.join("c", lease=1e6)
        await send(room, "1", "2", "3", "4")
        (first,) = await room.take("c")
        await room.release("c", [first])
        assert await room.broker.cancel_many(room.queue, ["2", "4"]) == [CANCELLED, CANCELLED]
        (first,) = await room.take("c")
        await room.settle("c", [first])
        assert ids(await room.take("c")) == ["3"]

    @promise()
    async def test_a_given_id_that_is_published_again_by_the_same_request_is_created_by_it(self, room: Room) -> None:
        for delay in (0.0, 5.0):
            name = f"a{delay}"
            assert await room.publish(name, request="7", delay=delay) == [CREATED]
            assert await room.publish(name, request="7", delay=delay) == [CREATED]
            assert await room.publish(name, request="other", delay=delay) == [EXISTS]
            assert await room.publish(name, delay=delay) == [EXISTS]
            assert await room.publish(name, request="7", task="another", delay=delay) == [Receipt.CONFLICT]
        state = await room.broker.inspector.queue(room.queue)
        assert (state.ready, state.scheduled, state.totals["published"]) == (1, 1, 2)

    @promise()
    async def test_a_given_id_is_its_creators_after_the_job_has_ended(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", request="r")
        await room.settle("c", await room.take("c"), given_id=True)
        assert await room.publish("a", request="r") == [CREATED]
        assert await room.publish("a", request="other") == [EXISTS]
        assert await room.take("c") == []

    @promise()
    async def test_a_promotion_sent_again_gives_its_first_answer(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", delay=5)
        asked = ["nobody", "a"]
        assert await room.broker.promote(room.queue, asked, request="r") == ["a"]
        assert await room.broker.promote(room.queue, asked, request="r") == ["a"]
        assert await room.broker.promote(room.queue, asked, request="other") == []
        assert ids(await room.take("c")) == ["a"]

    @promise()
    async def test_a_replay_sent_again_gives_its_first_answer_and_replays_no_newer_letter(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", "b")
        assert await room.broker.replay(room.queue, ["a", "nobody"], request="r") == ["a"]
        await room.settle("c", await room.take("c"), Kind.DEAD)
        assert await room.broker.replay(room.queue, ["a", "nobody"], request="r") == ["a"]
        assert await room.status("a") == "dead"
        assert await room.broker.replay(room.queue, ["a"], request="other") == ["a"]

    @promise()
    async def test_a_purge_sent_again_gives_its_first_answer(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", "b")
        for _ in range(2):
            assert await room.broker.purge(room.queue, ["nobody", "a"], request="r") == ["a"]
        assert await room.broker.purge(room.queue, ["a", "b"], request="other") == ["b"]

    @promise()
    async def test_a_request_that_changed_nothing_is_looked_at_again(self, room: Room) -> None:
        await room.join("c")
        assert await room.broker.purge(room.queue, ["a"], request="r") == []
        await room.die("c", "a")
        assert await room.broker.purge(room.queue, ["a"], request="r") == ["a"]

    @promise()
    async def test_a_clearing_sent_again_gives_its_first_answer_and_clears_no_newer_stop(self, room: Room) -> None:
        for replay, put_back in ((True, 3), (False, 0)):
            name = f"{replay}"
            await stop(room, *(f"{name}{n}" for n in range(3)), key=name.encode())
            for _ in range(2):
                cleared = await room.broker.clear_key(room.queue, name.encode(), replay=replay, request=name)
                assert cleared == put_back
            assert await room.broker.clear_key(room.queue, name.encode(), replay=replay, request="other") is None
            assert await room.broker.clear_key(room.queue, name.encode(), replay=replay) is None
            await finish_all(room)

    @promise()
    async def test_a_clearing_of_many_letters_sent_again_counts_all_of_them(self, room: Room) -> None:
        await stop(room, *(str(n) for n in range(1200)))
        while await room.take("c") or (await room.broker.inspector.queue(room.queue)).dead < 1200:
            pass
        for _ in range(2):
            assert await room.broker.clear_key(room.queue, KEY, replay=True, request="r") == 1200


class TopicRequestPromises(Promises):
    @promise()
    async def test_a_given_id_that_is_emitted_again_by_the_same_request_is_created_by_it(self, room: Room) -> None:
        await begin(room, "a")
        for delay in (0.0, 5.0):
            name = f"e{delay:g}"
            assert await emit(room, name, request="7", delay=delay) == [CREATED]
            assert await emit(room, name, request="7", delay=delay) == [CREATED]
            assert await emit(room, name, request="other", delay=delay) == [EXISTS]
            assert await emit(room, name, delay=delay) == [EXISTS]
        assert await finish(room, "a") == ["e0"]
        room.at(5)
        assert await finish(room, "a") == ["e5"]

    @promise()
    async def test_a_move_back_sent_again_moves_the_group_once(self, room: Room) -> None:
        await begin(room, "a", keep=1e6)
        await emit(room, "1", "2")
        assert await finish(room, "a") == ["1", "2"]
        assert await room.broker.seek(A, BEGINNING, request="r")
        assert await finish(room, "a") == ["1", "2"]
        assert await room.broker.seek(A, BEGINNING, request="r")
        assert await finish(room, "a") == []
        assert await room.broker.seek(A, BEGINNING, request="other")
        assert await finish(room, "a") == ["1", "2"]

    @promise()
    async def test_a_removal_of_a_group_sent_again_says_removed_again(self, room: Room) -> None:
        await begin(room, "a", "b")
        for _ in range(2):
            assert await room.broker.remove_group(A, request="r")
        assert not await room.broker.remove_group(A, request="other")
        assert not await room.broker.remove_group(A)
        assert await room.broker.remove_group(B)

    @promise()
    async def test_a_removal_of_a_prefix_sent_again_says_removed_again(self, room: Room) -> None:
        await room.broker.open_topic(TOPIC, {})
        await room.broker.open_prefix("ord", "a", BEGINNING)
        for _ in range(2):
            assert await room.broker.remove_prefix("ord", "a", request="r")
        assert not await room.broker.remove_prefix("ord", "a", request="other")
        assert not await room.broker.remove_group(group_address(TOPIC, "a"))

    @promise()
    async def test_a_number_of_shards_that_there_is_already_is_set_again_whatever_is_on_its_way(self, room: Room) -> None:
        await room.broker.reshard("mail", 2)
        queue = shard_name("mail", 1)
        assert await room.broker.publish(queue, [Post("a", b"")], shards=2) == [CREATED]
        await room.broker.reshard("mail", 2)
        assert await room.broker.publish(queue, [Post("b", b"")], shards=2) == [CREATED]

    @promise()
    async def test_a_change_of_shards_that_was_cut_off_before_it_looked_looks_when_sent_again(self, room: Room) -> None:
        assert await room.broker.publish("mail", [Post("whole", b"")]) == [CREATED]
        for shard in range(2):
            await room.broker.fence_shard(shard_name("mail", shard), 0)
        await room.broker.note_shards("mail", 2, anew=True)
        with pytest.raises(ShardsInUse, match="1 ready"):
            await room.broker.reshard("mail", 2)
        assert await room.broker.publish("mail", [Post("another", b"")]) == [CREATED]
