"""Stopping a worker and a supervisor: always to the end, whatever happens."""

from __future__ import annotations

import asyncio
import errno
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from millstream import Millstream
from millstream.broker import Broker, Claim
from millstream.errors import BrokerRefused, BrokerUnavailable
from millstream.model.address import Address
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker import codes, messages
from millstream.worker.supervisor.children.child import Child
from millstream.worker.supervisor.children.circuit import FRUITLESS
from millstream.worker.supervisor.plan import Plan
from millstream.worker.supervisor.relay import Relay
from millstream.worker.supervisor.supervisor import Supervisor
from millstream.worker.supervisor.wedged import watch_for_wedged
from millstream.worker.worker import KeeperDied, Worker
from tests.stage import PATIENCE, looped, new_app, until


class Site:
    """A lifespan that records when and by which task it was left."""

    def __init__(self, app: Millstream) -> None:
        self.tasks: list[asyncio.Task[Any] | None] = []
        app.lifespan = self.lifespan

    @asynccontextmanager
    async def lifespan(self, app: Millstream) -> AsyncIterator[None]:
        self.tasks.append(asyncio.current_task())
        yield
        self.tasks.append(asyncio.current_task())

    def is_left(self) -> bool:
        entered, left = self.tasks
        return entered is left


def refuse(error: Exception) -> Callable[..., Awaitable[Any]]:
    async def refused(*args: Any, **options: Any) -> Any:
        raise error

    return refused


def keepers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "millstream-keeper"]


def patch(broker: object, verb: str, replacement: Callable[..., Awaitable[Any]]) -> None:
    setattr(broker, verb, replacement)


async def nothing_is_left(app: Millstream, site: Site) -> None:
    assert site.is_left()
    assert keepers() == []
    assert (await app.inspector.queue(Address("default"))).consumers == 0
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("millstream")] == []


# -- stopping always completes ---------------------------------------------------------------------------------------------


@looped
async def test_cancelling_run_stops_its_worker() -> None:
    app = new_app(grace=0.01)
    site, started = Site(app), asyncio.Event()

    @app.task
    async def job() -> None:
        started.set()
        await asyncio.Event().wait()

    async with app:
        running = asyncio.create_task(app.run())
        await job.enqueue()
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await nothing_is_left(app, site)
        assert (await app.inspector.queue(Address("default"))).ready == 1


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "stop", "until"])
@pytest.mark.parametrize("waits_for", ["connection", "lease"])
@looped
async def test_run_can_be_stopped_while_it_waits_for_its_server(
    waits_for: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(grace=600.0)
    site, missed = Site(app), asyncio.Event()
    app.task(name="job")(lambda: None)

    async def is_away(*args: Any, **options: Any) -> Any:
        missed.set()
        raise BrokerUnavailable("away")

    async with app:
        if waits_for == "connection":
            monkeypatch.setattr(app, "broker_to_serve", is_away)
        else:
            patch(await app.broker(), "join", is_away)
        until_missed = asyncio.create_task(missed.wait())
        running = asyncio.create_task(app.run(until=until_missed if how == "until" else None))
        await missed.wait()
        if how == "stop":
            app.stop()
        elif how != "until":
            signal.raise_signal(signal.Signals[how])
        summary = await asyncio.wait_for(running, PATIENCE / 2)
        assert (summary.exit_code, summary.totals["done"]) == (codes.OK, 0)
        if waits_for == "lease":
            await nothing_is_left(app, site)
        assert not site.tasks or site.is_left()


@looped
async def test_a_second_cancellation_only_ends_the_grace_period() -> None:
    app = new_app(grace=600.0)
    site, started = Site(app), asyncio.Event()
    workers: list[Worker] = []

    @app.task
    async def job() -> None:
        started.set()
        await asyncio.Event().wait()

    async def serve() -> None:
        async with app.worker() as worker:
            workers.append(worker)
            await asyncio.Event().wait()

    async with app:
        serving = asyncio.create_task(serve())
        await job.enqueue()
        await started.wait()
        serving.cancel()
        await until(lambda: workers[0]._stopping is not None)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await nothing_is_left(app, site)
        assert (await app.inspector.queue(Address("default"))).ready == 1


@looped
async def test_a_second_stop_waits_for_the_first() -> None:
    app = new_app()
    site = Site(app)
    app.task(name="job")(lambda: None)
    async with app:
        async with app.worker() as worker:
            first = await worker.stop(0.0)
            assert await worker.stop(0.0) is first
        await nothing_is_left(app, site)


@pytest.mark.parametrize("verb", ["nudge", "release", "leave", "unregister"])
@pytest.mark.parametrize("error", [BrokerRefused("no permission"), BrokerUnavailable("away"), LookupError("a bug")], ids=repr)
@looped
async def test_an_error_while_stopping_does_not_prevent_the_remaining_steps(verb: str, error: Exception) -> None:
    app = new_app(grace=0.01)
    site = Site(app)

    @app.task
    async def job() -> None: ...

    async with app:
        broker = await app.broker()
        async with app.worker() as worker:
            await until(lambda: worker._claimers[0]._waiting)
            patch(broker, verb, refuse(error))
        assert site.is_left()
        assert keepers() == []


@looped
async def test_a_worker_whose_keeper_died_ends_with_that_error() -> None:
    app = new_app(grace=0.01, lease=1.0)
    site = Site(app)

    @app.task
    async def job() -> None: ...

    async with app:
        with pytest.raises(KeeperDied):
            async with app.worker() as worker:
                keeper = cast(Any, worker._keeper)
                patch(keeper._keeper._broker, "renew", refuse(LookupError("a bug")))
                keeper.keep("other", "somebody", 0.01)
                await worker.failed.wait()
                keeper.keep("default", "somebody", 1.0)
        await nothing_is_left(app, site)


@looped
async def test_a_keeper_that_is_stopped_while_it_connects_ends() -> None:
    app = new_app()
    connecting, connected = threading.Event(), threading.Event()
    app.task(name="job")(lambda: None)
    async with app:
        broker = await app.broker()
        worker = await app._make_worker([Address("default")], 1, 1)
        keeper = cast(Any, worker._keeper)

        async def connect() -> Broker:
            connecting.set()
            await asyncio.to_thread(connected.wait)
            return broker

        keeper._open_broker = connect
        starting = asyncio.create_task(worker.start())
        await asyncio.to_thread(connecting.wait)
        starting.cancel()
        await until(lambda: keeper._stopped)
        connected.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not keeper.alive


@looped
async def test_a_thread_that_outlasts_the_grace_period_keeps_its_lease_until_it_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.worker.worker.LAST_WORDS_SECONDS", 0.05)
    app = new_app(grace=0.0)
    starts: list[int] = []
    started, gate = threading.Event(), threading.Event()

    @app.task
    def job() -> None:
        starts.append(1)
        started.set()
        gate.wait()

    async with app:
        async with app.worker() as worker:
            await job.enqueue()
            await asyncio.to_thread(started.wait)
        keeper = cast(Any, worker._keeper)
        assert keeper.alive, "the lease of a running job must be renewed"
        assert [list(leases) for leases in keeper._keeper._leases.values()] == [[worker._lanes[0].consumer]]
        assert (await app.inspector.queue(Address("default"))).running == 1
        gate.set()
        await asyncio.to_thread(keeper._thread.join)
        state = await app.inspector.queue(Address("default"))
        assert (state.running, state.ready, state.totals["done"], state.consumers) == (0, 0, 1, 0)
    assert starts == [1]


def test_a_thread_keeps_its_lease_even_if_the_event_loop_ends_before_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.worker.worker.LAST_WORDS_SECONDS", 0.05)
    app = new_app(grace=0.0)
    started, gate = threading.Event(), threading.Event()

    @app.task
    def job() -> None:
        started.set()
        gate.wait()

    async def serve() -> Worker:
        async with app, app.worker() as worker:
            await job.enqueue()
            await asyncio.to_thread(started.wait)
        return worker

    keeper = cast(Any, asyncio.run(serve())._keeper)
    assert keeper.alive
    gate.set()
    keeper._thread.join(30.0)
    assert not keeper.alive


# -- leases, deadlines and suspects ----------------------------------------------------------------------------------------


@looped
async def test_a_lease_that_could_not_be_given_up_is_not_dropped() -> None:
    app = new_app()
    dropped: list[str] = []

    @app.task
    async def job() -> None: ...

    async with app, app.worker() as worker:
        patch(worker._broker, "leave", refuse(BrokerUnavailable("away")))
        keeper = cast(Any, worker._keeper)
        keeper.drop = lambda queue, consumer: dropped.append(consumer)
        await worker.stop(0.0)
    assert dropped == []


@looped
async def test_a_timeout_fires_although_the_server_does_not_answer() -> None:
    app = new_app(grace=0.0)
    struck, asked, answer = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.task(timeout=0.5, retry=0)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            struck.set()

    async def stall(*args: Any) -> int:
        asked.set()
        await answer.wait()
        return 0

    async with app, app.worker(concurrency=1) as worker:
        lane = worker._lanes[0]
        await slow.enqueue()
        await until(lambda: worker._hold.running)
        patch(worker._broker, "release", stall)
        (running,) = worker._hold.running
        worker._hold.ready[0].append(running)  # simulate a job that was claimed ahead of its slot long ago
        running.since -= 60.0
        await asked.wait()
        await struck.wait()
        assert not answer.is_set()
        answer.set()
        assert lane.consumer


@looped
async def test_a_suspect_is_not_stranded_by_a_lost_reply() -> None:
    app = new_app(grace=0.01)
    ran: list[int] = []

    @app.task
    async def job(number: int) -> None:
        ran.append(number)

    async with app:
        broker = await app.broker()
        handle = await job.enqueue(1)
        for dead in ("first", "second"):
            await broker.join(Address("default"), dead, 30.0)
            assert len((await broker.claim(Address("default"), dead, 1)).entries) == 1
            await broker.leave(Address("default"), dead)
        claim, lost = broker.claim, list[Claim]()

        async def lose_one(*args: Any, alone: bool = False, **options: Any) -> Claim:
            answer = await claim(*args, alone=alone, **options)
            if alone and not lost:
                lost.append(answer)
                raise BrokerUnavailable("the reply is lost")
            return answer

        patch(broker, "claim", lose_one)
        async with app.worker():
            await handle.result(20.0)
    assert ran == [1]
    assert len(lost[0].entries) == 1


# -- the supervisor --------------------------------------------------------------------------------------------------------


class Process:
    """A worker process as the supervisor sees it."""

    pid = 4711

    def __init__(self, code: int | None) -> None:
        self.returncode = code
        self.ended = asyncio.Event()
        if code is not None:
            self.ended.set()

    async def wait(self) -> int:
        await self.ended.wait()
        return self.returncode or 0

    def send_signal(self, number: int) -> None:
        self.ended.set()


class Troupe(Supervisor):
    """A supervisor with scripted children: each ends with a code immediately, with or without a hello, stays until it is
    told to stop, or cannot be started."""

    def __init__(self, script: Mapping[int, tuple[bool, int | None] | OSError], broker: object, processes: int = 1) -> None:
        orders = messages.Orders("nothing:app", [], 1, 1, burst=False)
        super().__init__(Plan(orders, processes), cast(Any, self._open))
        self.script = script
        self.spawned = 0
        self.leases: set[tuple[Address, str]] = set()
        self._backend = broker
        patch(self.launcher, "start", self.start)

    async def _open(self, hello: messages.Hello) -> Any:
        return self._backend

    async def start(self, orders: messages.Orders) -> Child:
        scripted = self.script[self.spawned]
        self.spawned += 1
        if isinstance(scripted, OSError):
            raise scripted
        says_hello, code = scripted
        child = Child(cast(Any, Process(code)), orders)
        self.children.add(child)
        if says_hello:
            child.hello = messages.Hello("memory://", "n", 60.0, 0.0, 0.0, [Address("default")], [], [])
            child.served_since = child.started
            child.leases = set(self.leases)
            self.services = self.make_services(cast(Any, self._backend))
        child.listening = asyncio.create_task(asyncio.sleep(0))
        return child


class Silent:
    """A server that never answers."""

    inspector = None

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def leave(self, queue: str, consumer: str, *, blameless: bool = False) -> int:
        self.asked.append(consumer)
        await asyncio.Event().wait()
        return 0

    async def unregister(self, worker_id: str) -> None: ...

    async def close(self) -> None: ...


@looped
async def test_a_child_that_waits_for_its_supervisor_is_not_mistaken_for_wedged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.worker.supervisor.wedged.LOOK_SECONDS", 0.0)
    orders = messages.Orders("nothing:app", [], 1, 1, burst=False)
    killed: list[Child] = []

    def silent_child() -> Child:
        process = Process(None)
        child = Child(cast(Any, process), orders)
        child.hello = messages.Hello("memory://", "n", 60.0, 0.0, 1.0, [Address("default")], [], [])
        child.longest_timeout = 1.0
        monkeypatch.setattr(process, "kill", lambda: killed.append(child), raising=False)
        return child

    waits, serves = silent_child(), silent_child()
    serves.welcome()
    for child in (waits, serves):
        child.heard -= 3600.0
    relay = Relay()
    watching = asyncio.create_task(watch_for_wedged([waits, serves], Reporter(relay, logs.logger("test")), relay))
    await until(lambda: serves in killed)
    assert killed == [serves]
    waits.welcome()
    assert waits.silent < 3600.0
    watching.cancel()


@pytest.mark.parametrize("code", [codes.FAILED, codes.USAGE, codes.SERVER])
@looped
async def test_a_child_that_never_served_ends_the_worker(code: int) -> None:
    assert (await Troupe({0: (False, code)}, Silent()).run()).exit_code == code


@pytest.mark.parametrize("code", [codes.FAILED, codes.USAGE, codes.SERVER])
@looped
async def test_after_one_child_has_served_a_child_that_cannot_start_is_restarted(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.worker.supervisor.children.circuit.RESTART_SECONDS", (0.0,))
    troupe = Troupe({0: (True, -9), 1: (False, code), 2: (False, code), 3: (True, None)}, Silent())
    running = asyncio.create_task(troupe.run())
    await until(lambda: troupe.spawned == 4 or running.done())
    troupe.stopping.signalled(signal.SIGTERM)
    assert (await running).exit_code == codes.OK
    assert troupe.spawned == 4


@pytest.mark.parametrize(("code", "ends"), [(9, codes.CRASHING), (codes.FAILED, codes.CRASHING), (codes.SERVER, codes.SERVER)])
@looped
async def test_children_that_die_at_start_are_restarted_only_a_limited_number_of_times(
    code: int, ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.worker.supervisor.children.circuit.RESTART_SECONDS", (0.0,))
    troupe = Troupe({0: (True, -9)} | dict.fromkeys(range(1, 100), (False, code)), Silent())
    assert (await troupe.run()).exit_code == ends
    assert troupe.spawned == FRUITLESS


@looped
async def test_while_other_children_serve_a_broken_one_is_probed_one_process_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.worker.supervisor.children.circuit.RESTART_SECONDS", (0.0,))
    monkeypatch.setattr("millstream.worker.supervisor.children.circuit.PROBE_SECONDS", 0.01)
    monkeypatch.setattr("millstream.worker.supervisor.children.managed_process.SOON_SECONDS", 0.05)
    script: dict[int, tuple[bool, int | None]] = {0: (True, None)}
    script |= dict.fromkeys(range(1, 2 * FRUITLESS + 6), (False, 9))
    script |= dict.fromkeys(range(2 * FRUITLESS + 6, 2 * FRUITLESS + 8), (True, None))
    troupe = Troupe(script, Silent(), 3)
    at_once = 0

    async def count(orders: messages.Orders) -> Child:
        nonlocal at_once
        child = await Troupe.start(troupe, orders)
        if any(process.circuit.is_open for process in troupe.processes.managed):
            at_once = max(at_once, sum(each.hello is None for each in troupe.children if each.process.returncode is None))
        return child

    patch(troupe.launcher, "start", count)
    running = asyncio.create_task(troupe.run())
    await until(lambda: troupe.spawned == 2 * FRUITLESS + 8 or running.done())
    await until(lambda: not any(process.circuit.is_open for process in troupe.processes.managed))
    assert at_once <= 1
    troupe.stopping.signalled(signal.SIGTERM)
    assert (await running).exit_code == codes.OK


FULL = OSError(errno.EAGAIN, "Resource temporarily unavailable")


@looped
async def test_a_temporary_lack_of_processes_does_not_end_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.worker.supervisor.children.circuit.RESTART_SECONDS", (0.0,))
    troupe = Troupe({0: (True, None), 1: FULL, 2: FULL, 3: (True, None)}, Silent(), 2)
    running = asyncio.create_task(troupe.run())
    await until(lambda: troupe.spawned == 4 or running.done())
    assert not troupe.stopping.begun
    troupe.stopping.signalled(signal.SIGTERM)
    assert (await running).exit_code == codes.OK


@looped
async def test_a_permanent_lack_of_processes_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.worker.supervisor.children.circuit.RESTART_SECONDS", (0.0,))
    troupe = Troupe(dict.fromkeys(range(100), FULL), Silent())
    assert (await troupe.run()).exit_code == codes.CRASHING
    assert troupe.spawned == FRUITLESS


@pytest.mark.parametrize("fate", [(False, codes.FAILED), (True, -9), FULL], ids=["cannot start", "dies", "no process left"])
@looped
async def test_spares_that_die_at_start_are_restarted_a_limited_number_of_times_and_the_worker_stays(
    fate: tuple[bool, int | None] | OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.worker.supervisor.children.circuit.RESTART_SECONDS", (0.0,))
    troupe = Troupe({0: (True, None)} | dict.fromkeys(range(1, 100), fate), Silent())
    running = asyncio.create_task(troupe.run())
    await until(lambda: troupe.processes.managed and troupe.processes.managed[0].serves)
    (child,) = troupe.children

    def told() -> bool:
        troupe.spares.isolate(Address("default"))
        return troupe.spares.circuit.is_open

    await until(told)
    for _ in range(10):
        await troupe._hear(child, messages.Suspects(Address("default")))
    await until(lambda: len(troupe.lives) == 1)
    assert troupe.spawned == 1 + FRUITLESS
    assert not troupe.stopping.begun and troupe.processes.managed[0].serves
    troupe.stopping.signalled(signal.SIGTERM)
    assert (await running).exit_code == codes.OK


LEASES = {(Address("a"), "1"), (Address("b"), "2"), (Address("c"), "3")}


@looped
async def test_the_leases_of_a_dead_child_are_given_up_concurrently_and_only_briefly_on_shutdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.worker.supervisor.reclaimer.GIVE_UP_SECONDS", 0.05)
    server = Silent()
    troupe = Troupe({0: (True, -9)}, server)
    troupe.leases = LEASES
    running = asyncio.create_task(troupe.run())
    await until(lambda: len(server.asked) == 3)
    assert not running.done()
    troupe.stopping.signalled(signal.SIGTERM)
    await running
    assert sorted(server.asked) == ["1", "2", "3"]


@looped
async def test_a_second_signal_skips_giving_up_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.worker.supervisor.reclaimer.GIVE_UP_SECONDS", 600.0)
    server = Silent()
    troupe = Troupe({0: (True, -9)}, server)
    troupe.leases = LEASES
    running = asyncio.create_task(troupe.run())
    await until(lambda: len(server.asked) == 3)
    troupe.stopping.signalled(signal.SIGTERM)
    assert troupe.services is not None and troupe.services.reclaimer._giving_up
    troupe.stopping.signalled(signal.SIGTERM)
    await running
