"""Why a job is not running."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.broker import OrderRules, Why, WorkerInfo
from millstream.broker.contract import SUSPECT_AFTER
from millstream.message import ErrorNote, decode_message, encode_message
from millstream.outcome import Kind, Outcome
from millstream.testing.promises.inspecting import send
from millstream.testing.room import DONE_ENDING, LETTER, START, Promises, Room, promise

KEY = b"ann"
TTL = 1e6


async def why(room: Room, job_id: str) -> Why:
    return await room.broker.inspector.why(room.queue, job_id)


async def serve(room: Room, consumer: str = "w.1", *, order: OrderRules | None = None, **said: Any) -> None:
    """A consumer, and the worker of its name in the registry, which says this of itself."""
    await room.broker.join(room.queue, consumer, TTL, order=order)
    worker = consumer.partition(".")[0]
    said = {"tasks": {"t": False}, **said}
    info = WorkerInfo(worker, "host", 1, "0", [room.queue], START, {}, slots=(1, 1), **said)
    await room.broker.register(info, TTL)


async def end(room: Room, kind: Kind = Kind.DONE, **fields: Any) -> None:
    """Claim one whole message and settle it."""
    (entry,) = await room.take("w.1", 1)
    body = entry.body or b""
    if kind is Kind.DEAD:
        fields = {"body": body, "task": "t", "letter": LETTER, **fields}
    await room.broker.settle(room.queue, "w.1", [Outcome(kind, entry.ref, decode_message(body).id, **fields)])


class ExplainingPromises(Promises):
    @promise()
    async def test_a_job_that_nobody_knows_is_unknown(self, room: Room) -> None:
        assert (await why(room, "never")).code == "unknown"
        assert (await room.broker.inspector.why("no such queue", "never")).code == "unknown"

    @promise()
    async def test_a_job_of_a_queue_without_a_worker_waits_for_one(self, room: Room) -> None:
        await send(room, "a")
        found = await why(room, "a")
        assert found.code == "no_worker"
        assert "no worker serves" in found.text

    @promise()
    async def test_a_worker_of_another_queue_is_no_worker_of_this_one(self, room: Room) -> None:
        await send(room, "a")
        await room.broker.register(WorkerInfo("w", "host", 1, "0", ["elsewhere"], START, {}), TTL)
        found = await why(room, "a")
        assert found.code == "no_worker"
        assert "elsewhere" in found.text

    @promise()
    async def test_a_job_of_a_paused_queue_waits_until_it_is_resumed(self, room: Room) -> None:
        await serve(room)
        await send(room, "a")
        await room.broker.pause(room.queue)
        assert (await why(room, "a")).code == "paused"
        await room.broker.resume(room.queue)
        assert (await why(room, "a")).code == "ready"

    @promise()
    async def test_what_holds_up_the_whole_queue_is_told_beside_the_first_cause(self, room: Room) -> None:
        await send(room, "a", delay=5)
        await room.broker.pause(room.queue)
        found = await why(room, "a")
        assert (found.code, found.also) == ("scheduled", ("paused", "no_worker"))

    @promise()
    async def test_a_job_that_is_not_due_says_when_it_is(self, room: Room) -> None:
        await serve(room)
        await send(room, "a", delay=5)
        found = await why(room, "a")
        assert (found.code, found.at, found.also) == ("scheduled", START + 5, ())
        room.at(5)
        assert (await why(room, "a")).code == "ready"

    @promise()
    async def test_a_job_that_failed_says_when_it_is_tried_again_and_what_went_wrong(self, room: Room) -> None:
        await serve(room)
        await send(room, "a")
        (entry,) = await room.take("w.1")
        failed = msgspec.structs.replace(
            decode_message(entry.body or b""), attempt=2, last_error=ErrorNote("ValueError", "no\nluck")
        )
        again = Outcome(Kind.RETRY, entry.ref, "a", body=encode_message(failed), delay=7)
        await room.broker.settle(room.queue, "w.1", [again])
        found = await why(room, "a")
        assert (found.code, found.at, found.error) == ("retry", START + 7, "ValueError: no luck")

    @promise()
    async def test_a_running_job_names_its_worker(self, room: Room) -> None:
        await serve(room)
        await send(room, "a")
        await room.take("w.1")
        found = await why(room, "a")
        assert (found.code, found.workers) == ("running", ("w",))
        assert found.at is not None

    @promise()
    async def test_an_ended_job_says_how_it_ended(self, room: Room) -> None:
        await serve(room)
        await send(room, "done")
        await end(room, result=DONE_ENDING, result_ttl=60)
        await send(room, "dead")
        await end(room, Kind.DEAD)
        await send(room, "cancelled")
        await room.broker.cancel(room.queue, "cancelled")
        assert [(await why(room, job)).code for job in ("done", "dead", "cancelled")] == ["done", "dead", "cancelled"]

    @promise()
    async def test_a_job_whose_workers_are_all_at_their_limit_waits_for_a_slot(self, room: Room) -> None:
        await serve(room, "v.1", full=[room.queue])
        await serve(room, "w.1", full=[room.queue])
        await send(room, "a")
        found = await why(room, "a")
        assert (found.code, sorted(found.workers)) == ("busy", ["v", "w"])
        await serve(room, "w.1")
        assert (await why(room, "a")).code == "ready"

    @promise()
    async def test_a_job_that_waits_to_run_alone_says_so(self, room: Room) -> None:
        await send(room, "a")
        await room.crash("x", lives=SUSPECT_AFTER)
        await serve(room)
        await room.claim("w.1")
        assert (await why(room, "a")).code == "suspect"

    @promise()
    async def test_a_blocked_job_names_the_one_ahead_of_it(self, room: Room) -> None:
        await serve(room)
        await send(room, "1", "2", key=KEY)
        await room.take("w.1")
        found = await why(room, "2")
        assert (found.code, found.job, found.key) == ("blocked", "1", KEY)

    @promise()
    async def test_a_job_that_died_of_a_stopped_key_names_the_one_that_stopped_it(self, room: Room) -> None:
        await serve(room, order=OrderRules(stop=True))
        await send(room, "1", "2", key=KEY)
        await end(room, Kind.DEAD)
        assert await room.take("w.1") == []
        found = await why(room, "2")
        assert (found.code, found.job, found.key) == ("stopped_key", "1", KEY)
        assert (await why(room, "1")).code == "dead"
        await room.broker.clear_key(room.queue, KEY, replay=False)
        assert (await why(room, "2")).code == "dead"

    @promise()
    async def test_a_jobs_key_is_known_in_every_state(self, room: Room) -> None:
        await serve(room)
        inspector = room.broker.inspector
        await send(room, "dead", key=b"d")
        await end(room, Kind.DEAD)
        await send(room, "running", "blocked", key=KEY)
        await room.take("w.1")
        await send(room, "scheduled", delay=5, key=b"s")
        await send(room, "none")
        keys = [(await inspector.standing(room.queue, job)).key for job in ("dead", "blocked", "scheduled", "none", "never")]
        assert keys == [b"d", KEY, b"s", None, None]

    @promise()
    async def test_a_server_that_takes_writes_is_in_no_trouble(self, room: Room) -> None:
        assert await room.broker.inspector.trouble() is None


class UnknownTaskPromises(Promises):
    """Of queues alone: an event has no task."""

    @promise()
    async def test_a_job_of_a_task_that_no_worker_knows_says_what_they_know(self, room: Room) -> None:
        await serve(room, tasks={"other": False})
        await send(room, "a")
        found = await why(room, "a")
        assert (found.code, found.workers) == ("unknown_task", ("w",))
        assert "other" in found.text
        await serve(room, "v.1")
        assert (await why(room, "a")).code == "ready"

    @promise()
    async def test_a_worker_that_does_not_say_what_it_knows_may_know_the_task(self, room: Room) -> None:
        await serve(room, tasks=None)
        await send(room, "a")
        assert (await why(room, "a")).code == "ready"

    @promise()
    async def test_a_task_that_needs_a_thread_waits_for_a_thread(self, room: Room) -> None:
        await serve(room, tasks={"t": True}, running=(0, 1))
        await send(room, "a")
        assert (await why(room, "a")).code == "busy"
        await serve(room, tasks={"t": True}, running=(1, 0))
        assert (await why(room, "a")).code == "ready"
