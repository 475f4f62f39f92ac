"""Observers: they receive each kind of problem with its address, and can neither block nor break anything."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from millstream import Batch, Millstream, Problem, RetryPolicy, Snooze
from millstream.broker import WorkerInfo
from millstream.errors import (
    BrokerError,
    BrokerUnavailable,
    LeaseLost,
    MalformedEntry,
    PayloadTooLarge,
    UnknownTask,
    UsageError,
    WorkerCrashed,
)
from millstream.model.address import Address
from millstream.model.invalid import InvalidArguments
from millstream.reporting.observers import Observers
from millstream.reporting.problem import During
from millstream.reporting.reporter import Reporter
from millstream.worker.services.keeper import Keeper
from millstream.worker.services.registrar import Registrar
from millstream.worker.supervisor.relay import Relay
from millstream.worker.worker import KeeperDied
from tests.stage import PATIENCE, looped, new_app, place
from tests.system.harness import Server, running_server

SOON = RetryPolicy(2, delay=0.001, jitter=False)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server for this test, used by its apps."""
    with running_server() as server:
        place.url = server.url
        yield server
        place.url = "memory://"


class Seen:
    """An observer that stores the problems it receives."""

    def __init__(self, app: Millstream) -> None:
        self.problems: list[Problem] = []
        app.on_error(self.problems.append)

    def of(self, during: During) -> list[Problem]:
        return [problem for problem in self.problems if problem.during == during]

    async def until(self, during: During, which: Callable[[Problem], bool] = lambda _: True) -> Problem:
        """Return the first matching problem."""
        async with asyncio.timeout(PATIENCE):
            while not (found := [problem for problem in self.of(during) if which(problem)]):
                await asyncio.sleep(0.002)
        return found[0]


def problem(number: int = 0) -> Problem:
    return Problem(during="handler", error=ValueError(number), at=datetime.now(UTC))


def ended(threads: list[threading.Thread], count: int) -> bool:
    return len(threads) == count and not threads[-1].is_alive()


def is_a(kind: type[BaseException], problem: Problem) -> bool:
    return isinstance(problem.error, kind)


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.002)


# -- registering observers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, "print", lambda: None, lambda a, b: None])
def test_an_observer_that_cannot_be_called_with_a_problem_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="one argument, a Problem"):
        Millstream("memory://").on_error(wrong)


async def _streams(problem: Problem) -> Any:
    yield problem


def _yields(problem: Problem) -> Any:
    yield problem


@pytest.mark.parametrize("wrong", [_streams, _yields])
def test_a_generator_function_is_refused_as_an_observer(wrong: Any) -> None:
    with pytest.raises(UsageError, match=f"observer .*{wrong.__name__} is a generator"):
        Millstream("memory://").on_error(wrong)


def test_on_error_returns_the_function_unchanged() -> None:
    def observe(problem: Problem) -> None: ...

    assert Millstream("memory://").on_error(observe) is observe


def test_a_problem_has_a_queue_or_a_topic_and_group() -> None:
    def scope(address: str | None) -> tuple[str | None, str | None, str | None]:
        told = Problem(during="read", error=ValueError(), at=datetime.now(UTC), address=address)
        return told.queue, told.topic, told.group

    assert scope("mail") == ("mail", None, None)
    assert scope("orders/billing") == (None, "orders", "billing")
    assert scope("orders/") == (None, "orders", None)
    assert scope(None) == (None, None, None)


# -- an observer blocks nothing and breaks nothing -------------------------------------------------------------------------


@looped
async def test_200_jobs_end_and_the_worker_stops_while_an_observer_is_blocked() -> None:
    app = new_app(retry=0)
    blocked, go_on = threading.Event(), threading.Event()

    @app.on_error
    def block(problem: Problem) -> None:
        blocked.set()
        go_on.wait(PATIENCE)

    @app.task
    async def fail(number: int) -> None:
        raise ValueError(number)

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    try:
        async with app.worker():
            await fail.enqueue(1)
            await until(blocked.is_set)
            jobs = await app.enqueue_many([double.bind(n) for n in range(200)])
            assert [await job.result(PATIENCE) for job in jobs] == [2 * n for n in range(200)]
            assert not go_on.is_set()
    finally:
        go_on.set()


@looped
async def test_an_observer_that_keeps_raising_is_logged_once_and_the_others_are_still_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    observers, told, sound = Observers(), list[Problem](), list[bool]()

    def sulk(problem: Problem) -> None:
        if not sound:
            raise SystemExit("no")

    observers.add(sulk)
    observers.add(told.append)
    for number in range(3):
        observers.tell(problem(number))
    await observers.told()
    assert len(told) == 3
    sound.append(True)
    observers.tell(problem())
    await observers.told()
    sound.clear()
    observers.tell(problem())
    await observers.told()
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(errors) == 2 and "sulk failed" in errors[0], "logged once per series of failures"


@looped
async def test_coroutine_observers_run_one_after_another_on_one_permanent_event_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millstream.reporting.observers.IDLE_SECONDS", 0.0)  # each problem gets its own thread
    observers = Observers()
    seen: list[tuple[int, asyncio.AbstractEventLoop]] = []

    async def late(problem: Problem) -> None:
        await asyncio.sleep(0)
        (number,) = problem.error.args
        seen.append((number, asyncio.get_running_loop()))
        if number == 2:
            raise ValueError("not this one")

    class Object:
        async def __call__(self, problem: Problem) -> None:
            await late(problem)

    for observer in (late, partial(late), Object()):
        observers.add(observer)
    for number in (1, 2, 3):
        observers.tell(problem(number))
        await observers.told()
    assert [number for number, _ in seen] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert len({loop for _, loop in seen}) == 1
    assert asyncio.get_running_loop() not in {loop for _, loop in seen}
    assert caplog.text.count("not this one") >= 3


@looped
async def test_problems_dropped_for_a_slow_observer_are_counted_in_the_next_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.reporting.observers.MOST_WAITING", 3)
    observers, told = Observers(), list[Problem]()
    blocked, go_on = threading.Event(), threading.Event()

    def block(problem: Problem) -> None:
        told.append(problem)
        blocked.set()
        go_on.wait(PATIENCE)

    observers.add(block)
    observers.tell(problem(0))
    await until(blocked.is_set)
    for number in range(1, 9):
        observers.tell(problem(number))
    go_on.set()
    await observers.told()
    observers.tell(problem(9))
    await observers.told()
    assert [(str(each.error), each.missed) for each in told] == [("0", 0), ("1", 0), ("2", 0), ("3", 0), ("9", 5)]


@looped
async def test_the_observer_thread_ends_when_idle_and_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.reporting.observers.IDLE_SECONDS", 0.01)
    observers, threads = Observers(), list[threading.Thread]()
    observers.add(lambda _: threads.append(threading.current_thread()))
    for round in (1, 2):
        observers.tell(problem())
        await until(partial(ended, threads, round))
    assert threads[0] is not threads[1] and threads[0].daemon


@looped
async def test_a_worker_stops_only_after_its_known_problems_were_reported() -> None:
    app, told = new_app(retry=0), list[Problem]()

    @app.on_error
    def slow(problem: Problem) -> None:
        time.sleep(0.002)
        told.append(problem)

    @app.task
    async def fail(number: int) -> None:
        raise ValueError(number)

    async with app.worker() as worker:
        await app.enqueue_many([fail.bind(n) for n in range(50)])
        await until(lambda: worker.totals["dead"] == 50)
    assert len(told) == 50


@looped
async def test_an_observer_may_use_the_app(valkey_server: str) -> None:
    place.url = valkey_server
    app = new_app(retry=0)
    place.url = "memory://"
    alarms: list[str] = []

    @app.task
    async def alarm(what: str) -> None:
        alarms.append(what)

    @app.task
    async def fail() -> None:
        raise ValueError("no luck")

    @app.on_error
    def raise_alarm(problem: Problem) -> None:
        alarm.enqueue_sync(str(problem.error))

    async with app.worker():
        await fail.enqueue()
        await until(lambda: alarms == ["no luck"])


def test_a_forked_child_reports_its_own_problems_and_a_process_waits_for_its_observers() -> None:
    script = """
        import os, time
        from datetime import UTC, datetime
        from millstream import Millstream, Problem

        app = Millstream("memory://")

        @app.on_error
        def say(problem):
            time.sleep(0.05)
            os.write(1, f"{problem.error} {'parent' if os.getpid() == parent else 'child'}\\n".encode())

        def tell(what):
            app.observers.tell(Problem(during="read", error=ValueError(what), at=datetime.now(UTC)))

        parent = os.getpid()
        tell("first")
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        else:
            tell("second")
    """
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert sorted(ran.stdout.splitlines()) == ["first parent", "second child"], ran.stderr


# -- handlers and messages -------------------------------------------------------------------------------------------------


@dataclass
class Order:
    number: int


@pytest.mark.usefixtures("every_backend")
@looped
async def test_each_failed_attempt_of_a_job_is_reported() -> None:
    app = new_app(retry=SOON)
    seen = Seen(app)

    @app.task(queue="mail")
    async def fail() -> None:
        raise ValueError("no luck")

    async with app.worker() as worker:
        job = await fail.enqueue()
        await until(lambda: len(seen.problems) == 3)
        assert {(p.during, p.queue, p.job_id, p.worker, p.crash, p.streak) for p in seen.problems} == {
            ("handler", "mail", job.id, worker.id, False, 1)
        }
        assert [p.attempt for p in seen.problems] == [1, 2, 3]
        (error, *_) = [p.error for p in seen.problems]
        assert isinstance(error, ValueError) and error.__traceback__ is not None
        assert datetime.now(UTC) >= seen.problems[0].at


@pytest.mark.usefixtures("every_backend")
@looped
async def test_a_failed_event_handler_is_reported_with_topic_and_group_and_a_batch_only_once() -> None:
    app = new_app(retry=0)
    seen = Seen(app)
    orders = app.topic("orders", Order)

    @orders.subscribe("billing")
    def bill(order: Order) -> None:
        raise ValueError("one")

    @orders.subscribe("warehouse", batch=Batch(3, wait=30))
    async def pack(together: list[Order]) -> None:
        raise ValueError("batch")

    @orders.subscribe("audit", ack="on_receive")
    async def audit(order: Order) -> None:
        raise ValueError("acked")

    async with app.worker():
        ids = await orders.publish_many([Order(n) for n in range(3)])
        await until(lambda: len(seen.problems) == 7)
    told = [(p.topic, p.group, str(p.error)) for p in seen.of("handler")]
    assert sorted(told) == [("orders", "audit", "acked")] * 3 + [("orders", "billing", "one")] * 3 + [
        ("orders", "warehouse", "batch")
    ]
    assert {p.job_id for p in seen.problems} == set(ids)


@looped
async def test_a_timeout_is_reported_and_a_snooze_is_not() -> None:
    app = new_app(retry=0)
    seen = Seen(app)
    runs: list[int] = []

    @app.task(timeout=0.01)
    async def dawdle() -> None:
        await asyncio.Event().wait()

    @app.task
    async def later() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Snooze(0)

    async with app.worker():
        await (await later.enqueue()).result(PATIENCE)
        await dawdle.enqueue()
        late = await seen.until("handler")
    assert isinstance(late.error, TimeoutError)
    assert len(seen.problems) == 1


@looped
async def test_messages_that_cannot_run_are_reported_as_decode_problems(server: Server) -> None:
    app = new_app(max_payload_bytes=200, unknown_task_grace=0)
    seen = Seen(app)
    orders = app.topic("orders", Order)

    @app.task(queue="mail")
    async def double(number: int) -> int:
        return 2 * number

    @orders.subscribe("billing")
    async def bill(order: Order) -> None: ...

    other = Millstream(server.url, namespace=app.settings.namespace)

    @other.task(name="double", queue="mail")
    async def another_double(number: str) -> None: ...

    @other.task(queue="mail")
    async def triple() -> None: ...

    tag = app.settings.namespace
    async with app.worker():
        queue, log = f"{{{tag}:q:mail}}:s", f"{{{tag}:t:orders}}:s"
        server.call("XADD", queue, "*", "who", "knows")
        malformed = await seen.until("decode", lambda p: isinstance(p.error, MalformedEntry))
        assert malformed.queue == "mail" and (malformed.job_id or "").startswith("malformed-")
        server.call("XADD", log, "*", "who", "knows")
        foreign = await seen.until("decode", lambda p: p.topic == "orders")
        assert isinstance(foreign.error, MalformedEntry) and foreign.group == "billing"
        async with other:
            for call, kind in (
                (another_double.bind("x" * 300), PayloadTooLarge),
                (another_double.bind("text"), InvalidArguments),
                (triple.bind(), UnknownTask),
            ):
                (job,) = await other.enqueue_many([call])
                told = await seen.until("decode", partial(is_a, kind))
                assert (told.job_id, told.queue, told.attempt, told.crash) == (job.id, "mail", 1, False)
    assert {p.during for p in seen.problems} == {"decode"}


# -- an unreachable server -------------------------------------------------------------------------------------------------


@looped
async def test_an_outage_is_reported_by_every_service_and_logged_once_each_way(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.worker.services.registrar.BEAT_SECONDS", 0.05)
    caplog.set_level(logging.INFO)
    app = new_app(lease=0.6)
    seen = Seen(app)
    started, gate = asyncio.Event(), asyncio.Event()

    @app.task
    async def hold() -> None:
        started.set()
        await gate.wait()

    async with app.worker() as worker:
        job = await hold.enqueue()
        await started.wait()
        for outage in (1, 2):
            seen.problems.clear()
            server.kill()
            gate.set()
            missed: tuple[During, ...] = ("read", "renew", "maintenance", "settle")
            for during in missed[: 4 if outage == 1 else 3]:
                told = await seen.until(during, lambda p: p.streak == 3)
                assert isinstance(told.error, BrokerUnavailable) and not told.crash
                assert told.queue == (None if during == "maintenance" else "default")
                assert told.worker == worker.id
                assert [p.streak for p in seen.of(during)][:3] == [1, 2, 3], "a new streak starts after a success"
            server.start()
            while caplog.text.count("the server is back") < outage:
                await asyncio.sleep(0.002)
            await until(lambda: not worker._reporter.troubled)
            await job.result(PATIENCE)
            await app.observers.told()
    assert caplog.text.count("the server is unreachable") == 2


@looped
async def test_without_observers_consecutive_failures_are_logged_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "millstream")
    app = new_app()

    @app.task
    async def nothing() -> None: ...

    async with app.worker():
        server.kill()
        await until(lambda: caplog.text.count("still unreachable") > 3)
        server.start()
        await until(lambda: "the server is back" in caplog.text)
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([line for line in loud if "the server is unreachable" in line]) == 1
    assert not [line for line in loud if "still unreachable" in line]


@looped
async def test_a_failed_publish_is_reported_and_raises(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millstream.client.outbox.PATIENCE_SECONDS", 0.3)
    app = new_app()
    seen = Seen(app)
    orders = app.topic("orders", Order)

    @app.task
    async def nothing() -> None: ...

    async with app:
        for _ in range(2):
            await nothing.enqueue()
            await orders.publish(Order(1))
            seen.problems.clear()
            caplog.clear()
            server.kill()
            with pytest.raises(BrokerUnavailable):
                await nothing.enqueue()
            with pytest.raises(BrokerUnavailable):
                await orders.publish(Order(1))
            await seen.until("publish", lambda p: p.topic == "orders" and p.group is None)
            jobs = [p for p in seen.of("publish") if p.queue == "default"]
            assert [p.streak for p in jobs] == list(range(1, len(jobs) + 1)), "a new streak starts after a success"
            assert caplog.text.count("publishing to 'default' failed") == 1
            server.start()
    assert {p.during for p in seen.problems} == {"publish"}


@looped
async def test_a_publish_without_a_reply_is_reported(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.client.outbox.PATIENCE_SECONDS", 0.3)
    app = new_app()
    seen = Seen(app)

    @app.task
    async def nothing() -> None: ...

    async with app:
        await nothing.enqueue()
        with server.stalled(), pytest.raises(BrokerUnavailable, match="did not answer"):
            await nothing.enqueue()
        told = await seen.until("publish")
        assert told.queue == "default" and "did not answer" in str(told.error)
        await nothing.enqueue()


@looped
async def test_a_failed_wake_up_for_due_jobs_is_reported(server: Server) -> None:
    app = new_app()
    seen = Seen(app)

    @app.task
    async def remind() -> None: ...

    server.call("ACL", "SETUSER", "default", "-client|unblock")
    async with app.worker():
        job = await remind.options(delay=0.2).enqueue()
        told = await seen.until("promote")
        assert told.queue == "default" and "unblock" in str(told.error) and not told.crash
        await job.result(PATIENCE)
        server.call("ACL", "SETUSER", "default", "+client|unblock")


# -- leases and crashed workers --------------------------------------------------------------------------------------------


@looped
async def test_a_lost_lease_is_reported(server: Server) -> None:
    app = new_app()
    other = Millstream(server.url, namespace=app.settings.namespace)
    seen = Seen(app)

    @app.task
    async def nothing() -> None: ...

    async with app.worker() as worker:
        async with other:
            await (await other.broker()).leave(Address("default"), worker._lanes[0].consumer)
        told = await seen.until("renew")
        assert isinstance(told.error, LeaseLost) and (told.queue, told.worker) == ("default", worker.id)
        await (await nothing.enqueue()).result(PATIENCE)
    assert len(seen.problems) == 1


@pytest.mark.usefixtures("every_backend")
@looped
async def test_a_job_whose_worker_died_is_reported_as_a_crash_when_it_is_claimed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = new_app()
    seen = Seen(app)

    @app.task
    async def careful() -> None: ...

    @app.task(max_crashes=0)
    async def once() -> None: ...

    async with app:
        again, dead = await careful.enqueue(), await once.enqueue()
        broker = await app.broker()
        await broker.join(Address("default"), "victim", 30.0)
        assert len((await broker.claim(Address("default"), "victim", 10)).entries) == 2
        await broker.leave(Address("default"), "victim")
        async with app.worker():
            await again.result(PATIENCE)
            await until(lambda: len(seen.problems) == 2)
    told = {p.job_id: p for p in seen.of("reclaim")}
    assert told.keys() == {again.id, dead.id}
    assert all(p.crash and isinstance(p.error, WorkerCrashed) and p.queue == "default" for p in told.values())
    assert "crash 1 of at most 3" in str(told[again.id].error) and "max_crashes=0" in str(told[dead.id].error)
    assert caplog.text.count("died or lost the connection to the server: 1\n") == 1


@looped
async def test_a_keeper_that_dies_is_reported_as_a_crash_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app(lease=0.1)
    seen = Seen(app)

    @app.task
    async def nothing() -> None: ...

    async def bug(_: Keeper) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Keeper, "_renew", bug)
    with pytest.raises(KeeperDied):
        async with app.worker() as worker:
            await worker.failed.wait()
    told = await seen.until("renew")
    assert told.crash and isinstance(told.error, KeeperDied) and isinstance(told.error.__cause__, ZeroDivisionError)


# -- services of a worker --------------------------------------------------------------------------------------------------


@looped
async def test_a_service_that_keeps_raising_is_reported_as_a_crash_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_app()
    seen = Seen(app)

    @app.task
    async def nothing() -> None: ...

    async def bug(_: Registrar) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Registrar, "run", bug)
    async with app.worker():
        told = await seen.until("maintenance", lambda p: p.streak == 4)
    assert told.crash and isinstance(told.error, ZeroDivisionError)
    assert [p.streak for p in seen.of("maintenance")][:4] == [1, 2, 3, 4]
    assert len([r for r in caplog.records if "the registrar failed" in r.getMessage() and r.levelno == logging.ERROR]) == 1


@looped
async def test_an_unreadable_queue_is_reported_and_recovers(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    app = new_app()
    seen = Seen(app)

    @app.task
    async def nothing() -> None: ...

    async with app.worker():
        stream = f"{{{app.settings.namespace}:q:default}}:s"
        server.call("SET", stream, "not a stream")
        told = await seen.until("read", lambda p: p.streak == 3)
        assert isinstance(told.error, BrokerError) and not told.crash
        server.call("DEL", stream)
        job = await nothing.enqueue()
        await job.result(PATIENCE)
        repaired = await seen.until("maintenance")
        assert repaired.queue == "default" and "lost its consumer group" in str(repaired.error)
    assert len([r for r in caplog.records if "the claimer failed" in r.getMessage() and r.levelno == logging.ERROR]) == 1


@looped
async def test_a_worker_that_cannot_start_is_reported() -> None:
    app = new_app()
    seen = Seen(app)

    @app.task
    async def nothing() -> None: ...

    def no_info(_: Any) -> WorkerInfo:
        raise ZeroDivisionError("a bug")

    with pytest.MonkeyPatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr("millstream.worker.worker.Worker._info", no_info)
        async with app.worker():
            pass
    assert [type(p.error) for p in seen.problems][:1] == [ZeroDivisionError]


# -- apps and workers that were never closed -------------------------------------------------------------------------------


def test_an_app_that_was_entered_and_never_left_is_reported() -> None:
    told: list[Problem] = []

    async def enter() -> None:
        app = new_app()
        app.on_error(told.append)
        await app.__aenter__()

    with pytest.warns(ResourceWarning, match="never left"):
        asyncio.run(enter())
        gc.collect()
    asyncio.run(until(lambda: told))
    assert told[0].during == "unclosed" and "never left" in str(told[0].error)


def test_a_worker_that_was_entered_and_dropped_is_reported() -> None:
    async def main() -> None:
        app = new_app()
        seen = Seen(app)

        @app.task
        async def nothing() -> None: ...

        dropped = app.worker()
        await dropped.__aenter__()
        with pytest.warns(ResourceWarning, match="a worker was entered"):
            del dropped
            gc.collect()
            told = await seen.until("unclosed")
        assert told.worker is not None

    asyncio.run(main())


# -- problems of the supervisor --------------------------------------------------------------------------------------------


class Pipe:
    """The supervisor's end of the pipe."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def write(self, line: bytes) -> None:
        self.lines.append(line)


def test_problems_without_a_child_to_report_to_wait_for_the_next_child_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.worker.supervisor.relay.MOST_KEPT", 2)
    relay, pipe = Relay(), Pipe()
    assert not relay.listening
    for number in range(5):
        relay.tell(problem(number))
    relay.admit("child", pipe)  # type: ignore[arg-type]
    relay.tell(problem(5))
    assert relay.listening
    assert [b'"message":"%d"' % n in line for n, line in zip((0, 1, 5), pipe.lines, strict=True)] == [True] * 3
    assert b'"missed":3' in pipe.lines[2]
    relay.dismiss("child")
    relay.tell(problem(6))
    assert len(pipe.lines) == 3


def test_the_kinds_of_problems_are_a_closed_list() -> None:
    assert len(get_args(During)) == 10


def test_an_error_right_after_a_reconnect_does_not_start_a_new_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("millstream.reporting.reporter.time", SimpleNamespace(monotonic=lambda: now[0]))
    caplog.set_level(logging.INFO, "millstream.worker")
    reporter = Reporter(None, logging.getLogger("millstream.worker"))
    away = BrokerUnavailable("connection refused")
    reporter.miss("read", Address("a"), away)
    reporter.miss("read", Address("b"), away)
    now[0] = 5.0
    reporter.reach("read", Address("a"))
    now[0] = 5.1
    reporter.miss("read", Address("b"), away)  # this request was sent before the reconnect
    reporter.reach("read", Address("b"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    reporter.miss("read", Address("b"), away)  # a new outage
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
