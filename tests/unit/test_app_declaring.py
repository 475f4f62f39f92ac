"""Declaring apps, tasks and queues."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import AsyncTask, Millstream, Retry, RetryPolicy, SyncTask
from millstream.errors import UsageError
from millstream.model.address import Address
from tests.stage import looped


def build(**options: Any) -> Millstream:
    return Millstream("memory://", **options)


def declare(app: Millstream | None = None, /, **options: Any) -> Any:
    @(app or build()).task(**options)
    def work(n: int) -> int:
        return n

    return work


# -- apps --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("namespace", "a:b"),
        ("namespace", ""),
        ("namespace", 3),
        ("lease", 0),
        ("lease", -1.0),
        ("lease", "30"),
        ("max_crashes", -1),
        ("max_crashes", 1.5),
        ("grace", -1),
        ("timeout", 0),
        ("timeout", timedelta(seconds=-1)),
        ("timeout", float("nan")),
        ("retry", -1),
        ("retry", "5"),
        ("retry", True),
        ("result_ttl", -1),
        ("id_ttl", 0),
        ("unknown_task_grace", float("inf")),
        ("max_payload_bytes", 0),
        ("max_payload_bytes", 1.5),
        ("include", "shop.tasks"),
        ("include", [3]),
    ],
)
def test_an_app_refuses_an_invalid_option_and_names_it_with_its_value(option: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        build(**{option: value})
    assert option in str(caught.value)
    assert repr(value) in str(caught.value)


def test_unimplemented_options_are_refused_by_the_app() -> None:
    for option in ("middleware", "limit", "dashboard"):
        with pytest.raises(TypeError, match=option):
            build(**{option: None})


def test_durations_are_seconds_or_timedeltas() -> None:
    app = build(lease=timedelta(seconds=3), timeout=None, result_ttl=None, retry=2)
    assert app.settings.lease == 3.0
    assert app.settings.timeout == 0.0
    assert app.settings.result_ttl == 0.0
    assert app.settings.retry == RetryPolicy(2)


def test_an_invalid_url_is_refused_immediately() -> None:
    with pytest.raises(UsageError, match="amqp"):
        Millstream("amqp://localhost")


def test_a_url_that_is_not_given_is_resolved_at_first_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MILLSTREAM_URL", raising=False)
    monkeypatch.setenv("MILLSTREAM_REQUIRE_URL", "1")
    app = Millstream()
    task = declare(app)
    with pytest.raises(UsageError, match="MILLSTREAM_REQUIRE_URL"):
        task.enqueue_sync(1)
    monkeypatch.setenv("MILLSTREAM_URL", "memory://")
    assert task.enqueue_sync(1).created
    assert app.url.scheme == "memory"


def test_an_app_opens_no_socket_thread_or_event_loop_before_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", None)
    monkeypatch.setattr(asyncio, "new_event_loop", None)
    before = threading.active_count()
    app = Millstream("redis://no.such.host:1")
    declare(app).options(delay=3).bind(1)
    app.queue("mail")
    app.job("x")
    assert threading.active_count() == before


def test_load_imports_the_included_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "included_by_a_test.py").write_text("loaded = True\n")
    app = build(include=["included_by_a_test"])
    assert "included_by_a_test" not in sys.modules
    app.load()
    assert sys.modules["included_by_a_test"].loaded


def test_every_public_name_exists() -> None:
    assert {name for name in millstream.__all__ if not hasattr(millstream, name)} == set()
    unbuilt = {"Unique", "Limit", "Collect", "Depends", "gather"}
    assert unbuilt & set(millstream.__all__) == set()


# -- tasks -------------------------------------------------------------------------------------------------------------


def test_a_task_is_named_after_its_function_and_goes_to_the_default_queue() -> None:
    app = build()

    @app.task
    async def resize(n: int) -> int:
        """Makes it small."""
        return n

    assert isinstance(resize, AsyncTask)
    assert (resize.name, resize.settings.queue, resize.is_async) == ("resize", "default", True)
    assert list(app.queues) == ["default"]
    assert app.tasks["resize"] is resize


def test_a_task_looks_like_its_function() -> None:
    app = build()

    def shrink(n: int, *, by: float = 0.5) -> float:
        """Makes it small."""
        return n * by

    task = app.task(shrink)
    assert isinstance(task, SyncTask)
    assert (task.__name__, task.__doc__, task.__module__) == ("shrink", "Makes it small.", __name__)  # type: ignore[attr-defined]
    assert inspect.signature(task) == inspect.signature(shrink)
    assert inspect.unwrap(task) is shrink


@looped
async def test_calling_a_task_calls_the_function() -> None:
    app = build()

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    def triple(n: int) -> int:
        return 3 * n

    assert await double(4) == 8
    assert triple(n=4) == 12
    assert await double.options(delay=3)(4) == 8
    assert inspect.iscoroutinefunction(double.__call__), "frameworks check this before they await a callback"


def test_a_second_task_of_the_same_name_is_refused_with_a_fix() -> None:
    app = build()
    declare(app)
    with pytest.raises(UsageError, match=r"'work' is already declared in module .*test_app_declaring.*name="):
        declare(app)
    assert declare(app, name="other").name == "other"


def test_aliases_are_task_names_and_must_be_unique() -> None:
    app = build()
    task = declare(app, name="new", aliases=["old", "older"])
    assert app.tasks == {"new": task, "old": task, "older": task}
    for taken in ({"name": "old"}, {"name": "x", "aliases": ["new"]}, {"name": "y", "aliases": ["y"]}):
        with pytest.raises(UsageError, match="already"):
            declare(app, **taken)
    assert set(app.tasks) == {"new", "old", "older"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("name", "a:b"),
        ("name", ""),
        ("name", None),
        ("aliases", "old"),
        ("aliases", [3]),
        ("queue", "a{b"),
        ("queue", 3),
        ("timeout", 0),
        ("timeout", -3),
        ("result_ttl", -1),
        ("expires", 0),
        ("max_crashes", -1),
        ("retry", -1),
        ("retry", Retry),
        ("max_payload_bytes", 0),
    ],
)
def test_a_task_refuses_an_invalid_option_and_names_it_with_its_value(option: str, value: Any) -> None:
    app = build()
    with pytest.raises(UsageError) as caught:
        declare(app, **{option: value})
    assert option in str(caught.value)
    assert repr(value) in str(caught.value) or repr(value[0]) in str(caught.value)
    assert (dict(app.tasks), dict(app.queues)) == ({}, {}), "a refused declaration leaves nothing behind"


def test_an_unknown_option_of_a_task_is_refused_and_the_closest_name_is_suggested() -> None:
    with pytest.raises(UsageError, match=r"tiemout=3.*did you mean 'timeout'"):
        declare(tiemout=3)


def test_unimplemented_options_are_refused_by_a_task() -> None:
    for option in ("priority", "cpu", "unique", "order_by", "limit", "collect"):
        with pytest.raises(UsageError, match=option):
            declare(**{option: 1})


def test_a_task_inherits_the_defaults_of_its_app() -> None:
    app = build(timeout=7, result_ttl=8, max_crashes=1, retry=RetryPolicy(3, delay=9.0), max_payload_bytes=10)
    settings = declare(app).settings
    assert (settings.timeout, settings.result_ttl, settings.max_crashes, settings.max_payload_bytes) == (7.0, 8.0, 1, 10)
    assert settings.retry == RetryPolicy(3, delay=9.0)


def test_a_number_as_retry_changes_only_the_retry_count() -> None:
    app = build(retry=RetryPolicy(3, delay=9.0))
    task = declare(app, retry=5)
    assert task.retry == RetryPolicy(5, delay=9.0)
    assert task.retry.replace(delay=1.0) == RetryPolicy(5, delay=1.0)


def test_none_disables_timeout_size_limit_expiry_and_results() -> None:
    settings = declare(timeout=None, max_payload_bytes=None, expires=None, result_ttl=None).settings
    assert (settings.timeout, settings.max_payload_bytes, settings.expires, settings.result_ttl) == (0.0, None, 0.0, 0.0)


def test_only_a_function_can_be_a_task() -> None:
    class Class:
        def __call__(self) -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    async def stream() -> AsyncIterator[int]:
        yield 1

    app = build()
    refused: list[Any] = [Class, Class(), generator, stream, lambda: 1, functools.partial(print), 3, declare()]
    for thing in refused:
        with pytest.raises(UsageError, match=r"function|generator|name=|already"):
            app.task(thing)
    assert dict(app.tasks) == {}


def test_a_lambda_with_a_name_is_a_task() -> None:
    app = build()
    named = app.task(name="double")(lambda n: 2 * n)
    assert named(3) == 6


def test_a_task_accepts_a_function_or_options_but_not_both() -> None:
    app = build()
    task: Any = app.task
    with pytest.raises(UsageError, match="one function"):
        task(print, queue="mail")


# -- queues ------------------------------------------------------------------------------------------------------------


def test_a_queue_is_declared_by_name_or_by_a_task() -> None:
    app = build()
    mail = app.queue("mail", max_length=3)
    declare(app, queue="images")
    assert (mail.name, mail.max_length) == ("mail", 3)
    assert list(app.queues) == ["mail", "images"]
    assert app.queue("mail", max_length=3) is mail


def test_a_queue_declared_twice_with_different_options_is_refused() -> None:
    app = build()
    app.queue("mail", max_length=3)
    with pytest.raises(UsageError, match=r"'mail'.*max_length=3.*max_length=4"):
        app.queue("mail", max_length=4)


def test_a_queue_used_by_a_task_may_be_given_options_later() -> None:
    app = build()
    declare(app, queue="mail")
    app.queue("mail", max_length=3)
    assert app.queues["mail"].max_length == 3
    declare(app, name="other", queue="mail")
    assert app.queues["mail"].max_length == 3


@pytest.mark.parametrize(("name", "options"), [("a:b", {}), ("", {}), ("q", {"max_length": 0}), ("q", {"max_length": "9"})])
def test_a_queue_refuses_invalid_options(name: str, options: dict[str, Any]) -> None:
    app = build()
    with pytest.raises(UsageError, match=r"queue|max_length"):
        app.queue(name, **options)
    assert dict(app.queues) == {}


@looped
async def test_a_paused_queue_returns_nothing_to_claim_until_it_is_resumed() -> None:
    app = build()
    task = declare(app, queue="mail")
    mail = app.queue("mail")
    await task.enqueue(1)
    await mail.pause()
    assert (await app.inspector.queue("mail")).paused
    await task.enqueue(2)
    broker = await app.broker()
    await broker.join(Address("mail"), "hand", 30.0)
    assert (await broker.claim(Address("mail"), "hand", 10)).entries == []
    await mail.resume()
    assert len((await broker.claim(Address("mail"), "hand", 10)).entries) == 2
