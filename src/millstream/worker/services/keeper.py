"""The keeper: renews leases. It must never share an event loop with user code.

Under a supervisor, the supervisor process runs it, where no handler can starve it. Inside a user's own process a thread runs
it: there, C code that holds the GIL for longer than the lease starves the keeper.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial

from millstream.aio.backoff import START_SECONDS, patiently
from millstream.aio.threaded import run_in_thread
from millstream.broker import Broker, Consuming
from millstream.errors import BrokerError
from millstream.model.address import Address
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker.interruptible import unless_stopped

log = logs.logger("millstream.worker")

RENEW_FRACTION = 3
"""Number of renewals per lease duration."""

LATE_SECONDS = 0.5
"""Seconds until a failed renewal is retried. Shorter than the time between a lease becoming overdue and its lapse."""


JOIN_SECONDS = 5.0
"""Maximum seconds that stopping waits for the thread, which may be connecting."""


class Keeper:
    """Renews every lease from ``keep`` until ``drop``."""

    def __init__(self, broker: Consuming, reporter: Reporter | None = None) -> None:
        self._broker = broker
        self._reporter = reporter or Reporter(None, log)
        self._leases: dict[Address, dict[str, float]] = {}
        self._changed = asyncio.Event()

    def keep(self, queue: Address, consumer: str, lease: float) -> None:
        """Renew this lease from now on."""
        self._leases.setdefault(queue, {})[consumer] = lease
        self._changed.set()

    def drop(self, queue: Address, consumer: str) -> None:
        """Stop renewing this lease."""
        self._leases.get(queue, {}).pop(consumer, None)

    async def run(self) -> None:
        """Renew until cancelled."""
        late_since: float | None = None
        said = False
        while True:
            interval = min(self._intervals(), default=3600.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval if late_since is None else LATE_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            failed = await self._renew()
            if failed is None:
                if said:
                    log.info("leases are renewed again")
                late_since, said = None, False
                continue
            now = asyncio.get_running_loop().time()
            late_since = late_since or now
            # The worker already logs that the server is unreachable. This warning follows when a third of the lease is left.
            if not said and now - late_since >= interval:
                log.warning("leases cannot be renewed; when they lapse, other workers run this worker's jobs again: %s", failed)
                said = True

    def _intervals(self) -> list[float]:
        return [lease / RENEW_FRACTION for leases in self._leases.values() for lease in leases.values()]

    async def _renew(self) -> BrokerError | None:
        """Renew all leases concurrently and return an error if one failed. On a slow network, many queues must not take longer
        than one."""
        queues = {queue: dict(leases) for queue, leases in self._leases.items() if leases}
        renewals = (self._broker.renew(queue, leases) for queue, leases in queues.items())
        answers = await asyncio.gather(*renewals, return_exceptions=True)
        failed: BrokerError | None = None
        for queue, lost in zip(queues, answers, strict=True):
            if isinstance(lost, BrokerError):
                failed = lost
                # Observers hear of it immediately; ``run`` logs a warning when a lapse is near.
                self._reporter.fail("renew", queue, lost, "lease on queue %r not renewed: %s", queue, lost, level=logging.DEBUG)
            elif isinstance(lost, BaseException):
                raise lost
            else:
                self._reporter.heal("renew", queue)
                for consumer in lost:
                    self.drop(queue, consumer)
        return failed


class KeeperThread:
    """A Keeper in its own thread, with its own event loop and connection."""

    def __init__(self, open_broker: Callable[[], Awaitable[Broker]]) -> None:
        self._open_broker = open_broker
        self._reporter = Reporter(None, log)
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._stopped = False
        self._last: Callable[[Consuming], Awaitable[None]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper: Keeper | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="millstream-keeper", daemon=True)

    def report_to(self, reporter: Reporter) -> None:
        """Set the reporter of failed renewals. Call it before ``start``."""
        self._reporter = reporter

    @property
    def error(self) -> BaseException | None:
        """The error that ended the thread, or None."""
        return self._error

    @property
    def alive(self) -> bool:
        """Whether leases are being renewed. If not, the worker must stop claiming and end."""
        return self._thread.is_alive()

    async def start(self) -> None:
        """Start the thread and wait until it has connected. Raises the error of a failed connection."""
        self._thread.start()
        await asyncio.to_thread(self._ready.wait)
        if self._error is not None:
            raise self._error

    def keep(self, queue: Address, consumer: str, lease: float) -> None:
        """Renew this lease from now on. Does nothing if the thread has died; check ``alive``."""
        if self._keeper is not None:
            self._call(partial(self._keeper.keep, queue, consumer, lease))

    def drop(self, queue: Address, consumer: str) -> None:
        """Stop renewing this lease."""
        if self._keeper is not None:
            self._call(partial(self._keeper.drop, queue, consumer))

    def stop_after(self, last: Callable[[Consuming], Awaitable[None]]) -> None:
        """Call ``last`` in the thread with its connection, and end the thread afterwards. Leases are renewed until then."""
        self._last = last
        self._tell_to_stop()

    async def stop(self) -> None:
        """End the thread."""
        self._tell_to_stop()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, JOIN_SECONDS)

    def _tell_to_stop(self) -> None:
        self._stopped = True  # set before ``_stop`` is read: a thread that is still connecting checks it afterwards
        if self._stop is not None:
            self._call(self._stop.set)

    def _call(self, there: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                self._loop.call_soon_threadsafe(there)

    def _main(self) -> None:
        try:
            run_in_thread(self._run())
        except BaseException as error:
            self._error = error
            if self._ready.is_set():
                log.critical("the thread that renews this worker's leases died; the worker stops", exc_info=error)
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._stopped:
            self._stop.set()
        stopping = asyncio.create_task(self._stop.wait())
        deadline = self._loop.time() + START_SECONDS
        broker = await unless_stopped(patiently(self._open_broker, deadline), [stopping])
        self._keeper = Keeper(broker, self._reporter)
        self._ready.set()
        keeping = asyncio.create_task(self._keeper.run())
        try:
            await asyncio.wait((keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
            if self._last is not None and not keeping.done():
                last = asyncio.ensure_future(self._last(broker))
                await asyncio.wait((keeping, last), return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()
        finally:
            keeping.cancel()
            stopping.cancel()
            await broker.close()
