"""``task.options(...)``: the options it accepts, refuses and sends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream import Millstream, RetryPolicy
from millstream.errors import UsageError
from millstream.model.address import Address
from millstream.model.message import CallOverrides
from tests.stage import done, looped, new_app, work

pytestmark = pytest.mark.usefixtures("every_backend")


def build() -> tuple[Millstream, Any]:
    app = new_app()
    app.queue("mail")

    @app.task(retry=RetryPolicy(3, delay=9.0))
    def shrink(n: int) -> int:
        return n

    return app, shrink


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


NAIVE = datetime(2030, 1, 1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("delay", -1),
        ("delay", "3"),
        ("delay", True),
        ("delay", float("inf")),
        ("at", 3.0),
        ("at", NAIVE),
        ("id", ""),
        ("id", "x" * 201),
        ("id", "a\nb"),
        ("id", "a\x7fb"),
        ("id", "\ud800"),
        ("id", 42),
        ("queue", "nowhere"),
        ("queue", 3),
        ("retry", -1),
        ("retry", "5"),
        ("timeout", 0),
        ("timeout", -1),
        ("expires", 0),
        ("expires", NAIVE),
        ("result_ttl", -1),
    ],
)
def test_an_invalid_option_value_is_refused_immediately_and_named(option: str, value: Any) -> None:
    _, task = build()
    with pytest.raises(UsageError) as caught:
        task.options(**{option: value})
    assert option in str(caught.value)
    assert repr(value) in str(caught.value)


def test_an_unknown_option_is_refused_and_the_closest_name_is_suggested() -> None:
    _, task = build()
    with pytest.raises(UsageError, match=r"dely=3.*did you mean 'delay'"):
        task.options(dely=3)


def test_unimplemented_options_are_refused() -> None:
    _, task = build()
    for option in ("priority", "after", "unique"):
        with pytest.raises(UsageError, match=option):
            task.options(**{option: 1})


def test_delay_and_at_cannot_be_combined() -> None:
    _, task = build()
    with pytest.raises(UsageError, match="delay=3 and at="):
        task.options(delay=3, at=soon(3))
    with pytest.raises(UsageError, match="delay=3 and at="):
        task.options(delay=3).options(at=soon(3))


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 60, "expires": 30},
        {"delay": 30, "expires": 30},
        {"at": soon(600), "expires": 30},
        {"at": soon(600), "expires": soon(300)},
        {"delay": 600, "expires": soon(300)},
        {"expires": soon(-1)},
    ],
)
def test_a_job_that_expires_before_it_is_due_is_refused(options: dict[str, Any]) -> None:
    _, task = build()
    with pytest.raises(UsageError, match="expires="):
        task.options(**options)


def test_the_expiry_of_a_task_is_checked_against_a_delay() -> None:
    app = new_app()

    @app.task(expires=30)
    def brief() -> None: ...

    with pytest.raises(UsageError, match=r"expires=30.*60 s"):
        brief.options(delay=60)
    assert brief.options(delay=60, expires=90)
    assert brief.options(delay=60, expires=None)


def test_an_unknown_queue_is_refused_with_a_suggestion() -> None:
    _, task = build()
    with pytest.raises(UsageError, match=r"'mial'.*did you mean 'mail'.*app.queue"):
        task.options(queue="mial")


def test_options_can_be_chained_and_do_not_change_the_task() -> None:
    _, task = build()
    changed = task.options(id="a").options(queue="mail")
    assert type(changed) is type(task)
    assert (changed.template.id, changed.template.queue) == ("a", "mail")
    assert (task.template.id, task.template.queue) == ("", "default")


@looped
async def test_a_delayed_job_is_scheduled() -> None:
    _, task = build()
    for options in ({"delay": 60}, {"delay": timedelta(minutes=1)}, {"at": soon(60)}):
        job = await task.options(**options).enqueue(1)
        assert await job.status() == "scheduled"


@looped
async def test_a_job_due_in_the_past_is_ready() -> None:
    _, task = build()
    job = await task.options(at=soon(-60)).enqueue(1)
    assert await job.status() == "ready"


@looped
async def test_options_of_a_call_are_sent_with_its_message() -> None:
    app, task = build()
    policy = RetryPolicy(1, on=(OSError,))
    await task.enqueue(1)
    await task.options(retry=5, timeout=timedelta(seconds=3)).enqueue(1)
    await task.options(retry=policy, timeout=None, result_ttl=0).enqueue(1)
    sent = [message.overrides for message in await work(app, done())]
    assert sent == [
        None,
        CallOverrides(timeout=3.0, retry=5),
        CallOverrides(timeout=0.0, retry=policy.to_rule(), result_ttl=0.0),
    ]


@looped
async def test_the_expiry_is_passed_to_the_broker() -> None:
    app, task = build()
    await task.options(expires=60).enqueue(1)
    await task.options(expires=soon(60)).enqueue(1)
    broker = await app.broker()
    await broker.join(Address("default"), "hand", 30.0)
    claim = await broker.claim(Address("default"), "hand", 10)
    for entry in claim.entries:
        assert 50_000 < entry.expires_ms - claim.now_ms <= 61_000


@looped
async def test_a_job_sent_to_another_queue_is_found_there() -> None:
    app, task = build()
    await task.options(queue="mail", id="m-1").enqueue(1)
    assert await task.options(queue="mail").job("m-1").status() == "ready"
    assert await app.job("m-1", queue="mail").status() == "ready"
    assert await task.job("m-1").status() == "unknown"
