"""Promises about ``why``: the reason why a job is not running."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.broker import OrderRules, Why, WorkerInfo
from millstream.broker.values import SUSPECT_AFTER
from millstream.model.address import Address
from millstream.model.message import ErrorNote, decode_message, encode_message
from millstream.model.outcome import Kind, Outcome
from millstream.testing.backend import DONE_ENDING, LETTER, START, BackendUnderTest, Promises, promise
from millstream.testing.promises.inspecting import send

KEY = b"ann"
TTL = 1e6


async def why(backend: BackendUnderTest, job_id: str) -> Why:
    return await backend.broker.inspector.why(backend.queue, job_id)


async def serve(backend: BackendUnderTest, consumer: str = "w.1", *, order: OrderRules | None = None, **said: Any) -> None:
    """Join a consumer, and register the worker of that name with these fields."""
    await backend.broker.join(backend.queue, consumer, TTL, order=order)
    worker = consumer.partition(".")[0]
    said = {"tasks": {"t": False}, **said}
    info = WorkerInfo(worker, "host", 1, "0", [backend.queue], START, {}, slots=(1, 1), **said)
    await backend.broker.register(info, TTL)


async def end(backend: BackendUnderTest, kind: Kind = Kind.DONE, **fields: Any) -> None:
    """Claim one encoded message and settle it."""
    (entry,) = await backend.take("w.1", 1)
    body = entry.body or b""
    if kind is Kind.DEAD:
        fields = {"body": body, "task": "t", "letter": LETTER, **fields}
    await backend.broker.settle(backend.queue, "w.1", [Outcome(kind, entry.ref, decode_message(body).id, **fields)])


class ExplainingPromises(Promises):
    @promise()
    async def test_a_job_that_does_not_exist_is_unknown(self, backend: BackendUnderTest) -> None:
        assert (await why(backend, "never")).code == "unknown"
        assert (await backend.broker.inspector.why(Address("no such queue"), "never")).code == "unknown"

    @promise()
    async def test_a_job_of_an_unserved_queue_waits_for_a_worker(self, backend: BackendUnderTest) -> None:
        await send(backend, "a")
        found = await why(backend, "a")
        assert found.code == "no_worker"
        assert "no worker serves" in found.text

    @promise()
    async def test_a_worker_of_another_queue_does_not_count(self, backend: BackendUnderTest) -> None:
        await send(backend, "a")
        await backend.broker.register(WorkerInfo("w", "host", 1, "0", ["elsewhere"], START, {}), TTL)
        found = await why(backend, "a")
        assert found.code == "no_worker"
        assert "elsewhere" in found.text

    @promise()
    async def test_a_job_of_a_paused_queue_waits_until_it_is_resumed(self, backend: BackendUnderTest) -> None:
        await serve(backend)
        await send(backend, "a")
        await backend.broker.pause(backend.queue)
        assert (await why(backend, "a")).code == "paused"
        await backend.broker.resume(backend.queue)
        assert (await why(backend, "a")).code == "ready"

    @promise()
    async def test_an_explanation_also_names_causes_that_hold_up_the_whole_queue(self, backend: BackendUnderTest) -> None:
        await send(backend, "a", delay=5)
        await backend.broker.pause(backend.queue)
        found = await why(backend, "a")
        assert (found.code, found.also) == ("scheduled", ("paused", "no_worker"))

    @promise()
    async def test_a_scheduled_job_says_when_it_is_due_and_then_that_it_is_ready(self, backend: BackendUnderTest) -> None:
        await serve(backend)
        await send(backend, "a", delay=5)
        found = await why(backend, "a")
        assert (found.code, found.at, found.also) == ("scheduled", START + 5, ())
        backend.at(5)
        assert (await why(backend, "a")).code == "ready"

    @promise()
    async def test_a_failed_job_says_when_its_retry_is_due_and_what_went_wrong(self, backend: BackendUnderTest) -> None:
        await serve(backend)
        await send(backend, "a")
        (entry,) = await backend.take("w.1")
        failed = msgspec.structs.replace(
            decode_message(entry.body or b""), attempt=2, last_error=ErrorNote("ValueError", "no\nluck")
        )
        again = Outcome(Kind.RETRY, entry.ref, "a", body=encode_message(failed), delay=7)
        await backend.broker.settle(backend.queue, "w.1", [again])
        found = await why(backend, "a")
        assert (found.code, found.at, found.error) == ("retry", START + 7, "ValueError: no luck")

    @promise()
    async def test_a_running_job_names_its_worker(self, backend: BackendUnderTest) -> None:
        await serve(backend)
        await send(backend, "a")
        await backend.take("w.1")
        found = await why(backend, "a")
        assert (found.code, found.workers) == ("running", ("w",))
        assert found.at is not None

    @promise()
    async def test_a_job_that_has_ended_says_how(self, backend: BackendUnderTest) -> None:
        await serve(backend)
        await send(backend, "done")
        await end(backend, result=DONE_ENDING, result_ttl=60)
        await send(backend, "dead")
        await end(backend, Kind.DEAD)
        await send(backend, "cancelled")
        await backend.broker.cancel(backend.queue, "cancelled")
        assert [(await why(backend, job)).code for job in ("done", "dead", "cancelled")] == ["done", "dead", "cancelled"]

    @promise()
    async def test_a_job_whose_workers_are_all_at_their_limit_waits_for_a_slot(self, backend: BackendUnderTest) -> None:
        await serve(backend, "v.1", full=[backend.queue])
        await serve(backend, "w.1", full=[backend.queue])
        await send(backend, "a")
        found = await why(backend, "a")
        assert (found.code, sorted(found.workers)) == ("busy", ["v", "w"])
        await serve(backend, "w.1")
        assert (await why(backend, "a")).code == "ready"

    @promise()
    async def test_a_job_that_waits_to_run_alone_says_so(self, backend: BackendUnderTest) -> None:
        await send(backend, "a")
        await backend.crash("x", lives=SUSPECT_AFTER)
        await serve(backend)
        await backend.claim("w.1")
        assert (await why(backend, "a")).code == "suspect"

    @promise()
    async def test_a_blocked_job_names_the_job_ahead_of_it(self, backend: BackendUnderTest) -> None:
        await serve(backend)
        await send(backend, "1", "2", key=KEY)
        await backend.take("w.1")
        found = await why(backend, "2")
        assert (found.code, found.job, found.key) == ("blocked", "1", KEY)

    @promise()
    async def test_a_job_of_a_stopped_key_names_the_job_that_stopped_the_key(self, backend: BackendUnderTest) -> None:
        await serve(backend, order=OrderRules(stop=True))
        await send(backend, "1", "2", key=KEY)
        await end(backend, Kind.DEAD)
        assert await backend.take("w.1") == []
        found = await why(backend, "2")
        assert (found.code, found.job, found.key) == ("stopped_key", "1", KEY)
        assert (await why(backend, "1")).code == "dead"
        await backend.broker.clear_key(backend.queue, KEY, replay=False)
        assert (await why(backend, "2")).code == "dead"

    @promise()
    async def test_the_ordering_key_of_a_job_is_known_in_every_state(self, backend: BackendUnderTest) -> None:
        await serve(backend)
        inspector = backend.broker.inspector
        await send(backend, "dead", key=b"d")
        await end(backend, Kind.DEAD)
        await send(backend, "running", "blocked", key=KEY)
        await backend.take("w.1")
        await send(backend, "scheduled", delay=5, key=b"s")
        await send(backend, "none")
        keys = [(await inspector.standing(backend.queue, job)).key for job in ("dead", "blocked", "scheduled", "none", "never")]
        assert keys == [b"d", KEY, b"s", None, None]

    @promise()
    async def test_a_server_that_accepts_writes_has_no_trouble(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.inspector.trouble(backend.queue) is None


class UnknownTaskPromises(Promises):
    """Promises of queues only: an event has no task."""

    @promise()
    async def test_a_job_of_an_unknown_task_names_the_tasks_that_workers_know(self, backend: BackendUnderTest) -> None:
        await serve(backend, tasks={"other": False})
        await send(backend, "a")
        found = await why(backend, "a")
        assert (found.code, found.workers) == ("unknown_task", ("w",))
        assert "other" in found.text
        await serve(backend, "v.1")
        assert (await why(backend, "a")).code == "ready"

    @promise()
    async def test_a_worker_that_does_not_report_its_tasks_is_assumed_to_know_the_task(self, backend: BackendUnderTest) -> None:
        await serve(backend, tasks=None)
        await send(backend, "a")
        assert (await why(backend, "a")).code == "ready"

    @promise()
    async def test_a_job_that_needs_a_thread_waits_while_all_threads_are_in_use(self, backend: BackendUnderTest) -> None:
        await serve(backend, tasks={"t": True}, running=(0, 1))
        await send(backend, "a")
        assert (await why(backend, "a")).code == "busy"
        await serve(backend, tasks={"t": True}, running=(1, 0))
        assert (await why(backend, "a")).code == "ready"
