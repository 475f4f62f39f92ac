"""Headers of a job: kept through retries and replays, and not inherited by other jobs."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Millstream, RetryPolicy, current_job
from millstream.errors import JobFailed, PayloadTooLarge, UsageError
from tests.stage import looped, new_app

pytestmark = pytest.mark.usefixtures("every_backend")

PATIENCE = 30.0


def build(seen: list[tuple[str, int, dict[str, str]]]) -> tuple[Millstream, Any, Any]:
    app = new_app(retry=RetryPolicy(1, delay=0, jitter=False))

    @app.task
    async def inner() -> None:
        seen.append(("inner", current_job().attempt, dict(current_job().headers)))

    @app.task
    async def outer(dies: bool) -> None:
        job = current_job()
        seen.append(("outer", job.attempt, dict(job.headers)))
        if dies:
            raise ValueError("not yet")
        await (await inner.enqueue()).result(timeout=PATIENCE)

    return app, outer, inner


@looped
async def test_headers_reach_the_handler_in_every_attempt_and_after_a_replay() -> None:
    seen: list[tuple[str, int, dict[str, str]]] = []
    app, outer, _ = build(seen)
    async with app, app.worker():
        job = await outer.options(headers={"tenant": "a"}).enqueue(True)
        with pytest.raises(JobFailed):
            await job.result(timeout=PATIENCE)
        assert (await job.info()).headers == {"tenant": "a"}
        seen.clear()
        await app.dead.replay(job.id)
        with pytest.raises(JobFailed):
            await job.result(timeout=PATIENCE)
    assert seen == [("outer", 1, {"tenant": "a"}), ("outer", 2, {"tenant": "a"})]


@looped
async def test_a_job_enqueued_by_a_handler_does_not_inherit_its_headers() -> None:
    seen: list[tuple[str, int, dict[str, str]]] = []
    app, outer, _ = build(seen)
    async with app, app.worker():
        await (await outer.options(headers={"tenant": "a"}).enqueue(False)).result(timeout=PATIENCE)
        (job,) = await app.enqueue_many([outer.options(headers={"tenant": "b"}).bind(False)])
        await job.result(timeout=PATIENCE)
    assert [headers for _, _, headers in seen] == [{"tenant": "a"}, {}, {"tenant": "b"}, {}]


@looped
async def test_headers_that_are_not_text_or_are_too_large_are_refused_immediately() -> None:
    app, outer, _ = build([])
    for wrong in ({"a": 1}, {1: "a"}, "a=1", {"a": "\ud800"}):
        with pytest.raises(UsageError, match="headers"):
            outer.options(headers=wrong)
    with pytest.raises(PayloadTooLarge, match="headers"):
        outer.options(headers={"a": "x" * (1 << 20)})
    assert await app.inspector.queues() == []
