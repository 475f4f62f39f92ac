"""A worker process under a supervisor: imports the app, serves its queues, and lets the supervisor keep its leases."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, cast

from millstream.errors import BrokerRefused, BrokerUnavailable, ShardsChanged, UsageError
from millstream.handler import Handler
from millstream.settings import whole
from millstream.worker import codes, wire
from millstream.worker.hot.runner import longest_timeout
from millstream.worker.logs import configure_logging
from millstream.worker.relay import TEXT_LIMIT, as_problem
from millstream.worker.scaling.metrics import Metrics
from millstream.worker.scaling.strategies import Strategy
from millstream.worker.summary import Summary
from millstream.worker.worker import Worker

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.reporter import Reporter

log = logging.getLogger("millstream.worker")

BEAT_SECONDS = 1.0
"""How often a child tells its supervisor that its loop turns."""

CONNECT_SECONDS = 30.0
"""How long refused connections are tried again at start."""


class SupervisorKeeper:
    """The supervisor, as the keeper of this process's leases."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: wire.Hello) -> None:
        self._reader = reader
        self._writer = writer
        self._hello = hello
        self._reporter: Reporter | None = None
        self._worker: Worker | None = None
        self._strategy: Strategy | None = None
        self._retired: Callable[[], object] = lambda: None
        self._weighing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._reading is not None and not self._reading.done()

    @property
    def error(self) -> BaseException | None:
        return None if self.alive else ConnectionError("the supervisor is gone")

    def report_to(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def speak_for(self, worker: Worker, strategy: Strategy | None, retired: Callable[[], object]) -> None:
        """Whose work is told of; ``retired`` is called when the supervisor needs it no more, and it agreed to go."""
        self._worker, self._strategy, self._retired = worker, strategy, retired

    async def start(self) -> None:
        wire.say(self._writer, self._hello)
        if await wire.hear(self._reader) is None:
            raise ConnectionError("the supervisor is gone")
        self._reading = asyncio.create_task(self._until_gone())
        self._beating = asyncio.create_task(self._beat())

    def keep(self, queue: str, consumer: str, lease: float) -> None:
        wire.say(self._writer, wire.Keep(queue, consumer, lease))

    def drop(self, queue: str, consumer: str) -> None:
        wire.say(self._writer, wire.Drop(queue, consumer))

    def isolate(self, queue: str) -> None:
        """Ask for a process of their own for this queue's suspects."""
        wire.say(self._writer, wire.Suspects(queue))

    def longer(self, timeout: float) -> None:
        """Allow the loop to be blocked by a job that may run so long."""
        wire.say(self._writer, wire.Longer(timeout))

    async def stop(self) -> None:
        """The leases are given up. The supervisor goes on to hear that the loop turns: a lifespan may take long to end."""
        if self._reading is not None:
            self._reading.cancel()
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def say_bye(self, summary: Summary) -> None:
        """How it went."""
        error = "" if summary.error is None else f"{type(summary.error).__name__}: {summary.error}"[:TEXT_LIMIT]
        wire.say(self._writer, wire.Bye(dict(summary.totals), summary.interrupted, summary.abandoned, error))
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def _until_gone(self) -> None:
        while (word := await wire.hear(self._reader)) is not None:
            match word:
                case wire.Trouble() if self._reporter is not None:
                    self._reporter.pass_on(as_problem(word))
                case wire.Retire(until):
                    self._retire(until)
                case wire.Weigh(number, metrics):
                    self._weighing = asyncio.create_task(self._weigh(number, metrics))
                case _:
                    pass

    def _retire(self, until: float) -> None:
        worker = self._worker
        if worker is not None and time.monotonic() <= until and worker.retire():
            wire.say(self._writer, wire.Retiring())
            self._retired()
        else:
            wire.say(self._writer, wire.Busy(0 if worker is None else worker.held))

    async def _weigh(self, number: int, metrics: Metrics) -> None:
        """In a thread: whatever it does there, jobs and beats go on."""
        try:
            assert self._strategy is not None
            wanted = whole(await asyncio.to_thread(self._strategy, metrics), "what a strategy wants", minimum=0)
        except Exception as error:
            wire.say(self._writer, wire.Weighed(number, error=f"{type(error).__name__}: {error}"[:TEXT_LIMIT]))
        else:
            wire.say(self._writer, wire.Weighed(number, wanted))

    async def _beat(self) -> None:
        while True:
            worker = self._worker
            wire.say(self._writer, wire.Beat() if worker is None else wire.Beat(worker.held, dict(worker.totals)))
            await asyncio.sleep(BEAT_SECONDS)


def find_strategy(path: str) -> Strategy:
    """The app's own strategy, at ``module:attribute``; a class is called without arguments. UsageError says what is wrong."""
    found = find(path, "a strategy")
    strategy = found() if isinstance(found, type) else found
    if not callable(strategy):
        raise UsageError(f"{path!r} is a {type(strategy).__name__}, not a strategy: a function of Metrics")
    return cast("Strategy", strategy)


def find_app(path: str) -> Millstream:
    """The app at ``module:attribute``, its ``include`` imported too. UsageError says what is wrong."""
    from millstream.app import Millstream

    app = find(path, "an app")
    if not isinstance(app, Millstream):
        raise UsageError(f"{path!r} is a {type(app).__name__}, not a Millstream app")
    app.load()
    return app


def find(path: str, what: str) -> object:
    """What is at ``module:attribute``."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{path!r} does not name {what}: write module:attribute, for example tasks:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise UsageError(f"there is no module {module_name!r} here or on the Python path") from error
        raise
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UsageError(f"module {module_name!r} has no {attribute!r}") from None
    return found


async def serve(app: Millstream, orders: wire.Orders, strategy: Strategy | None = None) -> int:
    """Serve until told to stop; the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    queues = app.queues_to_serve(orders.queues)
    connecting, stopping = asyncio.ensure_future(app.connect_patiently(CONNECT_SECONDS)), asyncio.ensure_future(stop.wait())
    await asyncio.wait((connecting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        connecting.cancel()
        return codes.OK
    try:
        await connecting
        broker = await app.broker_to_serve(queues)
    except (BrokerUnavailable, BrokerRefused) as error:
        log.critical("%s", error)
        return codes.SERVER
    except ShardsChanged as error:
        log.critical("%s", error)
        return codes.USAGE
    reader, writer = await wire.streams(socket.socket(fileno=orders.fd))
    handlers: dict[str, Handler] = {**app.tasks, **app.subscriptions_at(queues)}
    hello = wire.Hello(
        app.url.text,
        app.settings.namespace,
        app.settings.id_ttl,
        app.settings.grace,
        longest_timeout([*app.tasks.values(), *app.subscriptions.values(), *app.broadcasts], app.settings),
        [queue for queue in queues if queue not in {broadcast.address for broadcast in app.broadcasts}],
        sorted({task.name for task in app.tasks.values()}),
        sorted(name for name, handler in handlers.items() if handler.settings.max_crashes == 0),
        app.observers.listening,
        [broadcast.name for broadcast in app.broadcasts if broadcast.address in queues],
        slots_at(queues, app, orders),
        consumers_at(queues, app),
        any(handler.ack == "on_receive" for handler in app.subscriptions_at(queues).values()) or bool(app.broadcasts),
    )
    keeper = SupervisorKeeper(reader, writer, hello)
    worker = Worker(
        broker=broker,
        keeper=keeper,
        tasks=app.tasks,
        subscriptions=app.subscriptions_at(queues),
        prefixes=app.prefixes,
        broadcasts=app.broadcasts,
        settings=app.settings,
        queues=queues,
        serving=app.serving(queues),
        concurrency=orders.concurrency,
        threads=orders.threads,
        lifespan=app.lifespan_context,
        isolate=None if orders.suspects_only else keeper.isolate,
        longer=keeper.longer,
        observers=app.observers,
        supervisor=orders.supervisor,
    )
    keeper.speak_for(worker, strategy, stop.set)
    threading.Thread(target=_end_with, args=(os.getppid(), app.settings.lease), name="millstream-orphan", daemon=True).start()
    return await _serve(worker, keeper, orders, stop, app.settings.grace)


async def _serve(worker: Worker, keeper: SupervisorKeeper, orders: wire.Orders, stop: asyncio.Event, grace: float) -> int:
    try:
        await worker.start(claim=not orders.suspects_only)
    except (BrokerUnavailable, BrokerRefused) as error:
        log.critical("%s", error)
        return codes.SERVER
    except Exception:
        log.critical("the worker could not start", exc_info=True)
        return codes.FAILED
    # What is there now stays: the collector need not walk over it again and again (8 % of a no-op job's time).
    gc.collect()
    gc.freeze()
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(worker.failed.wait())]
    if orders.suspects_only:
        waits.append(asyncio.ensure_future(worker.run_suspects()))
    elif orders.burst:
        waits.append(asyncio.ensure_future(worker.until_idle()))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    # Nobody renews our leases any more: finish what can be finished before others take over.
    summary = await worker.stop(grace if worker.error is None else min(grace, worker.lease / 3))
    await keeper.say_bye(summary)
    return codes.FAILED if worker.error is not None else summary.exit_code


def slots_at(addresses: Iterable[str], app: Millstream, orders: wire.Orders) -> dict[str, int]:
    """How many jobs of each address one process runs at once."""
    sizes = {True: orders.concurrency, False: orders.threads}
    groups = app.subscriptions_at(addresses)
    slots: dict[str, int] = {}
    for address in addresses:
        if (group := groups.get(address)) is not None:
            most = sizes[group.is_async]
            slots[address] = most if group.concurrency is None else min(most, group.concurrency)
        else:
            kinds = {task.is_async for task in app.tasks.values() if task.settings.queue == address}
            slots[address] = sum(sizes[kind] for kind in kinds) or orders.concurrency
    return slots


def consumers_at(addresses: Iterable[str], app: Millstream) -> dict[str, tuple[int, int]]:
    """How many processes may serve each, over all workers, where that is said."""
    declared: dict[str, object] = {**app.queues, **app.subscriptions_at(addresses)}
    said = {address: getattr(declared.get(address), "consumers", None) for address in addresses}
    return {address: (bounds[0], bounds[1]) for address, bounds in said.items() if bounds is not None}


def main() -> None:
    """The process: ``python -m millstream.worker.child ORDERS``."""
    orders = wire.decode_orders(sys.argv[1])
    configure_logging()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        app = find_app(orders.app)
        app.queues_to_serve(orders.queues)
        strategy = find_strategy(orders.strategy) if orders.strategy else None
    except UsageError as error:
        log.critical("%s", error)
        _exit(codes.USAGE)
    except Exception:
        log.critical("%s could not be imported", orders.app, exc_info=True)
        _exit(codes.USAGE)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        code = runner.run(serve(app, orders, strategy))
        _exit(code)


def _end_with(supervisor: int, lease: float) -> None:
    """In a thread, since a blocked loop cannot see it: if the supervisor dies this process ends too, while its leases last."""
    while os.getppid() == supervisor:
        time.sleep(BEAT_SECONDS)
    time.sleep(lease / 2)  # for the loop, if it turns, to end in good order
    log.critical("the supervisor is gone and the event loop is blocked: this process ends")
    _exit(codes.FAILED)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _exit(code: int) -> NoReturn:
    """End now: a thread that never returns must not keep the process."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
