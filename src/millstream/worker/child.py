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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from millstream.errors import BrokerRefused, BrokerUnavailable, UsageError
from millstream.handler import Handler
from millstream.worker import codes, wire
from millstream.worker.hot.runner import longest_timeout
from millstream.worker.logs import configure_logging
from millstream.worker.relay import as_problem
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
        for task in (self._reading, self._beating):
            if task is not None:
                task.cancel()
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def _until_gone(self) -> None:
        while (word := await wire.hear(self._reader)) is not None:
            if isinstance(word, wire.Trouble) and self._reporter is not None:
                self._reporter.pass_on(as_problem(word))

    async def _beat(self) -> None:
        while True:
            wire.say(self._writer, wire.Beat())
            await asyncio.sleep(BEAT_SECONDS)


def find_app(path: str) -> Millstream:
    """The app at ``module:attribute``, its ``include`` imported too. UsageError says what is wrong."""
    from millstream.app import Millstream

    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{path!r} does not name an app: write module:attribute, for example tasks:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        app: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise UsageError(f"there is no module {module_name!r} here or on the Python path") from error
        raise
    for name in attribute.split("."):
        try:
            app = getattr(app, name)
        except AttributeError:
            raise UsageError(f"module {module_name!r} has no {attribute!r}") from None
    if not isinstance(app, Millstream):
        raise UsageError(f"{path!r} is a {type(app).__name__}, not a Millstream app")
    app.load()
    return app


async def serve(app: Millstream, orders: wire.Orders) -> int:
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
        broker = await connecting
    except (BrokerUnavailable, BrokerRefused) as error:
        log.critical("%s", error)
        return codes.SERVER
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
    )
    threading.Thread(target=_end_with, args=(os.getppid(), app.settings.lease), name="millstream-orphan", daemon=True).start()
    return await _serve(worker, orders, stop, app.settings.grace)


async def _serve(worker: Worker, orders: wire.Orders, stop: asyncio.Event, grace: float) -> int:
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
    if worker.error is not None:
        return codes.FAILED
    return codes.INTERRUPTED if summary.interrupted else codes.OK


def main() -> None:
    """The process: ``python -m millstream.worker.child ORDERS``."""
    orders = wire.decode_orders(sys.argv[1])
    configure_logging()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        app = find_app(orders.app)
        app.queues_to_serve(orders.queues)
    except UsageError as error:
        log.critical("%s", error)
        _exit(codes.USAGE)
    except Exception:
        log.critical("%s could not be imported", orders.app, exc_info=True)
        _exit(codes.USAGE)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        code = runner.run(serve(app, orders))
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
