"""A worker process under a supervisor: imports the app and serves its queues. The supervisor renews its leases."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from millstream.errors import BrokerError, ShardsChanged, UsageError
from millstream.reporting import logs
from millstream.worker import codes, messages, roles
from millstream.worker.child.hello import say_hello
from millstream.worker.child.supervised import BEAT_SECONDS, SupervisorKeeper
from millstream.worker.finding import find_app, find_strategy
from millstream.worker.interruptible import StoppedEarly, unless_stopped
from millstream.worker.logs import app_may_configure_logging
from millstream.worker.scaling.strategies import Strategy
from millstream.worker.worker import UNTIL_THEY_END, Worker

if TYPE_CHECKING:
    from millstream.app import Millstream

log = logs.logger("millstream.worker")


class Stop:
    """How the process stops.

    After a signal, it stops within its grace period. When another process has replaced it, it stops after all running jobs have
    ended; a signal in that time starts the grace period.
    """

    def __init__(self, grace: float) -> None:
        self.asked = asyncio.Event()
        self.hurry: Callable[[], object] | None = None
        """Ends the grace period of the worker. None until the worker exists."""
        self._grace = grace
        self._drains = False

    @property
    def patience(self) -> float:
        """Seconds that running jobs have to finish."""
        return UNTIL_THEY_END if self._drains else self._grace

    def drain(self) -> None:
        """Stop after all running jobs have ended, because another process has replaced this one."""
        if not self.asked.is_set():
            self._drains = True
            self.asked.set()

    def signalled(self) -> None:
        if self._drains and self.hurry is not None:
            asyncio.get_running_loop().call_later(self._grace, self.hurry)
        self.asked.set()


async def serve(app: Millstream, orders: messages.Orders, strategy: Strategy | None = None) -> int:
    """Serve until asked to stop, and return the exit code."""
    grace = app.settings.grace if orders.grace is None else orders.grace
    stop = Stop(grace)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.signalled)
    queues = app.queues_to_serve(orders.queues)
    stopping = asyncio.ensure_future(stop.asked.wait())
    try:
        if app.url.scheme == "memory":
            raise UsageError(
                "memory:// exists only within one process, so worker processes cannot serve it: use --url or set "
                "MILLSTREAM_URL, or run the worker inside your process with app.run() or app.worker()"
            )
        broker = await unless_stopped(app.connect_patiently(queues), [stopping])
    except StoppedEarly:
        return codes.OK
    except (ShardsChanged, UsageError) as error:  # UsageError also if the data folder is not writable
        log.critical("%s", error)
        return codes.USAGE
    except BrokerError as error:
        log.critical("%s", error)
        return codes.SERVER
    reader, writer = await messages.streams(socket.socket(fileno=orders.fd))
    assignment = app.assignment(queues, concurrency=orders.concurrency, threads=orders.threads)
    keeper = SupervisorKeeper(reader, writer, say_hello(assignment, app.url, grace, app.queues))
    isolate = None if orders.suspects_only else keeper.isolate
    worker = Worker(broker, keeper, assignment, isolate=isolate, longer=keeper.longer, supervisor=orders.supervisor)
    stop.hurry = worker.hurry
    keeper.speak_for(worker, strategy, retired=stop.asked.set, drain=stop.drain, memory=orders.max_memory > 0)
    threading.Thread(target=_end_with, args=(os.getppid(), app.settings.lease), name="millstream-orphan", daemon=True).start()
    return await _serve(worker, keeper, orders, stopping, stop)


async def _serve(
    worker: Worker, keeper: SupervisorKeeper, orders: messages.Orders, stopping: asyncio.Future[Any], stop: Stop
) -> int:
    try:
        await unless_stopped(worker.start(claim=not orders.suspects_only), [stopping])
    except StoppedEarly:
        return codes.OK
    except BrokerError as error:
        log.critical("%s", error)
        return codes.SERVER
    except Exception:
        log.critical("the worker could not start", exc_info=True)
        return codes.FAILED
    # All objects that exist now are permanent, so the garbage collector need not visit them (8 % of a no-op job's time).
    gc.collect()
    gc.freeze()
    waits: list[asyncio.Future[Any]] = [stopping, asyncio.ensure_future(worker.failed.wait())]
    if orders.suspects_only:
        waits.append(asyncio.ensure_future(worker.run_suspects()))
    elif orders.burst:
        waits.append(asyncio.ensure_future(worker.until_idle()))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    # After an error the leases are not renewed any more, so running jobs have to end before the leases lapse.
    summary = await worker.stop(stop.patience if worker.error is None else min(stop.patience, worker.lease / 3))
    await keeper.say_bye(summary)
    return codes.FAILED if worker.error is not None else summary.exit_code


def main() -> None:
    """Run the child process. Its Orders are in the environment (``roles``)."""
    orders = messages.decode_orders(roles.take(roles.ORDERS))
    faulthandler.enable()
    if orders.stacks_fd >= 0:
        os.set_inheritable(orders.stacks_fd, False)
    faulthandler.register(signal.SIGUSR1, file=orders.stacks_fd if orders.stacks_fd >= 0 else sys.stderr, all_threads=True)
    try:
        with app_may_configure_logging(orders.log_level):
            app = find_app(orders.app, factory=orders.factory)
        placed = app.override(orders.url) if orders.url else nullcontext()
        if not orders.url:
            _ = app.url  # raises UsageError if the URL is invalid
        app.queues_to_serve(orders.queues)
        strategy = find_strategy(orders.strategy) if orders.strategy else None
    except UsageError as error:
        log.critical("%s", error)
        _exit(codes.USAGE)
    except Exception:
        log.critical("%s could not be loaded", orders.app, exc_info=True)
        _exit(codes.USAGE)
    with placed, asyncio.Runner(loop_factory=loop_factory()) as runner:
        code = runner.run(serve(app, orders, strategy))
        _exit(code)


def _end_with(supervisor: int, lease: float) -> None:
    """End this process if the supervisor dies, before the leases lapse. Runs in a thread, because the loop may be blocked."""
    while os.getppid() == supervisor:
        time.sleep(BEAT_SECONDS)
    time.sleep(lease / 2)  # time for an event loop that is not blocked to stop the worker
    log.critical("the supervisor has died and the event loop is blocked: this process exits now")
    _exit(codes.FAILED)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory if it is installed, or None for asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _exit(code: int) -> NoReturn:
    """Exit immediately: a thread that never returns must not keep the process alive."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
