"""Dead letters: listed, shown, replayed and purged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream import Millstream
from millstream.errors import UsageError
from millstream.model.address import Address
from tests.stage import dead, done, looped, new_app, work

pytestmark = pytest.mark.usefixtures("every_backend")


def build() -> tuple[Millstream, Any, Any]:
    app = new_app()

    @app.task
    async def shrink(n: int) -> int:
        return n

    @app.task(queue="mail")
    def send(to: str) -> None: ...

    return app, shrink, send


async def make_dead() -> tuple[Millstream, Any]:
    """Two "shrink" jobs exhausted and one rejected, one "send" job timed out, one job of another task exhausted."""
    app, shrink, send = build()

    @app.task
    def other() -> None: ...

    await shrink.options(id="s-1").enqueue(1)
    await shrink.options(id="s-2").enqueue(2)
    await other.options(id="o-1").enqueue()
    await work(app, dead("exhausted"))
    await shrink.options(id="s-3").enqueue(3)
    await work(app, dead("rejected"))
    await send.options(id="m-1").enqueue("x")
    await work(app, dead("timeout"), queue=Address("mail"))
    return app, shrink


def ids(found: Any) -> list[str]:
    return [job.id for job in found]


@looped
async def test_a_dead_job_is_shown_with_its_reason_and_times() -> None:
    app, _ = await make_dead()
    shown = await app.dead.show("m-1")
    assert shown is not None
    assert (shown.task, shown.queue, shown.reason) == ("send", "mail", "timeout")
    assert (shown.error_type, shown.error, shown.traceback) == ("ValueError", "no luck", "Traceback: …")
    assert (shown.attempts, shown.crashes) == (3, 0)
    for moment in (shown.enqueued_at, shown.died_at):
        assert moment is not None
        assert abs(moment - datetime.now(UTC)) < timedelta(minutes=1)
    assert await app.dead.show("m-1", queue="default") is None
    assert await app.dead.show("never") is None


@looped
async def test_dead_letters_are_listed_oldest_first_with_every_filter() -> None:
    app, _ = await make_dead()
    assert ids(await app.dead.list()) == ["s-1", "s-2", "o-1", "s-3", "m-1"]
    assert ids(await app.dead.list(queue="mail")) == ["m-1"]
    assert ids(await app.dead.list(reason="exhausted")) == ["s-1", "s-2", "o-1"]
    assert ids(await app.dead.list(task="shrink")) == ["s-1", "s-2", "s-3"]
    assert ids(await app.dead.list(task="shrink", reason="exhausted", queue="default")) == ["s-1", "s-2"]
    assert ids(await app.dead.list(limit=2)) == ["s-1", "s-2"]
    assert ids(await app.dead.list(task="nobody")) == []


@looped
async def test_many_dead_letters_are_listed_page_by_page() -> None:
    app, shrink, _ = build()
    await app.enqueue_many(shrink.bind(i) for i in range(450))
    await work(app, dead())
    assert len(await app.dead.list()) == 100
    assert len(await app.dead.list(limit=None)) == 450
    assert len(await app.dead.replay(queue="default")) == 450
    assert (await app.inspector.queue("default")).ready == 450


@looped
async def test_a_replayed_job_runs_again_with_its_original_id() -> None:
    app, shrink = await make_dead()
    assert await app.dead.replay("s-1") == ["s-1"]
    assert await shrink.job("s-1").status() == "ready"
    assert [message.id for message in await work(app, done(7))] == ["s-1"]
    assert await shrink.job("s-1").result() == 7
    assert ids(await app.dead.list()) == ["s-2", "o-1", "s-3", "m-1"]


@looped
async def test_one_or_many_dead_letters_are_replayed_with_every_filter() -> None:
    app, _ = await make_dead()
    assert await app.dead.replay(["s-2", "m-1", "never"]) == ["s-2", "m-1"]
    assert await app.dead.replay(["s-1", "o-1"], task="shrink") == ["s-1"]
    assert await app.dead.replay("s-3", reason="exhausted") == []
    assert await app.dead.replay(reason="exhausted") == ["o-1"]
    assert await app.dead.replay(task="shrink", queue="mail") == []
    assert await app.dead.replay(queue="default") == ["s-3"]
    assert await app.dead.list() == []


@looped
async def test_a_purged_dead_letter_is_deleted() -> None:
    app, _ = await make_dead()
    assert await app.dead.purge("s-1") == ["s-1"]
    assert await app.dead.purge(task="shrink", reason="rejected") == ["s-3"]
    assert await app.dead.purge(queue="mail") == ["m-1"]
    assert ids(await app.dead.list()) == ["s-2", "o-1"]
    assert await app.dead.replay("s-1") == []


@looped
async def test_replay_and_purge_without_a_selection_are_refused() -> None:
    app, _ = await make_dead()
    for verb in (app.dead.replay, app.dead.purge):
        with pytest.raises(UsageError, match="needs to know which dead letters"):
            await verb()
        assert await verb([]) == []
    assert len(await app.dead.list()) == 5


@looped
async def test_invalid_arguments_are_refused() -> None:
    app, _ = await make_dead()
    bored: Any = "bored"
    with pytest.raises(UsageError, match=r"'bored'.*exhausted"):
        await app.dead.list(reason=bored)
    with pytest.raises(UsageError, match="bored"):
        await app.dead.purge(reason=bored)
    with pytest.raises(UsageError, match="limit"):
        await app.dead.list(limit=0)
    numbers: Any = [3]
    with pytest.raises(UsageError, match="ids"):
        await app.dead.replay(numbers)
