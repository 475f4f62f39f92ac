"""The supervisor: keeps worker processes running, as many as are needed, and their leases.

It never imports user code, so no handler can starve it; of its problems a child tells the app's observers (``relay``).
When a child dies its leases are given up at once, and its jobs run elsewhere within a second instead of a lease.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from millstream.aio.backoff import START_SECONDS, patiently
from millstream.backends import make_backend
from millstream.broker import Broker
from millstream.config import parse_url
from millstream.errors import BrokerError, BrokerUnavailable, WorkerCrashed
from millstream.model.settings import AppSettings
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker import codes, messages, roles
from millstream.worker.logs import configure_logging
from millstream.worker.summary import Summary, Tally
from millstream.worker.supervisor.children import Child, heard_out, spawn
from millstream.worker.supervisor.managed_process import ManagedProcess
from millstream.worker.supervisor.plan import Plan
from millstream.worker.supervisor.recycling import recycle
from millstream.worker.supervisor.relay import Relay
from millstream.worker.supervisor.reloader import watch_sources
from millstream.worker.supervisor.services import SupervisorServices
from millstream.worker.supervisor.spares import Spares
from millstream.worker.supervisor.start_line import what_it_serves
from millstream.worker.supervisor.stopping import Stopping
from millstream.worker.supervisor.team import ProcessTeam
from millstream.worker.supervisor.wedged import watch_for_wedged

log = logs.logger("millstream.worker")


class Supervisor:
    """Runs a Plan until a signal, or until a burst is over."""

    def __init__(self, plan: Plan, open_broker: Callable[[messages.Hello], Awaitable[Broker]]) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.plan = plan
        self.children: set[Child] = set()
        self.managed: list[ManagedProcess] = []
        self.stopping = Stopping(self.children, begin=self._begin_to_stop, now=self._stop_now)
        self.probing = asyncio.Lock()
        """Held while one process is tried where others died at once."""
        self.reloads = 0
        self.changed = asyncio.Event()
        """Set when a source file changed, and when the worker stops."""
        self.tally = Tally()
        self.team = ProcessTeam(self)
        self._orders = msgspec.structs.replace(plan.orders, supervisor=self.id)
        self._open_broker = open_broker
        self._opening = asyncio.Lock()
        self._services: SupervisorServices | None = None
        self._running: list[asyncio.Task[None]] = []
        self._lives: set[asyncio.Task[None]] = set()
        self._spares = Spares(self, self._orders)
        self._relay = Relay()
        self._reporter = Reporter(self._relay, log)
        self._over = asyncio.Event()

    @property
    def has_served(self) -> bool:
        """Whether any child ever did."""
        return self._services is not None

    async def run(self) -> Summary:
        """Start the children, keep them until told to stop, and return how that went."""
        self.stopping.catch_signals()
        for _ in range(self.plan.processes):
            self.begin_process()
        self.serve(watch_for_wedged(self.children, self._reporter, self._relay))
        if self.plan.reload:
            self.serve(watch_sources(self._reload))
        if self.plan.orders.max_jobs or self.plan.orders.max_memory:
            self.serve(recycle(self))
        await self._over.wait()
        for service in self._running:
            service.cancel()
        if self._services is not None:
            await self._services.close()
        summary = self.tally.summary(self.stopping.reason)
        if self.has_served:
            log.info("stopped: %s", summary)
        return summary

    def serve(self, service: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have a service run until the worker ends."""
        task = asyncio.create_task(service)
        self._running.append(task)
        return task

    # -- children ----------------------------------------------------------------------------------------------------------

    def begin_process(self) -> ManagedProcess:
        """One process more."""
        process = ManagedProcess(self, self._orders)
        self.managed.append(process)
        self.live(process.live(), lambda: self.managed.remove(process))
        return process

    def live(self, life: Coroutine[Any, Any, None], ended: Callable[[], object]) -> None:
        """The worker goes on as long as any of these does."""
        task = asyncio.create_task(life)
        self._lives.add(task)

        def lived(task: asyncio.Task[None]) -> None:
            self._lives.discard(task)
            ended()
            if not task.cancelled() and task.exception() is not None:
                log.critical("a child could not be kept", exc_info=task.exception())
                self.stopping.stop(codes.FAILED)
            if not self._lives:
                self._over.set()

        task.add_done_callback(lived)

    async def start(self, orders: messages.Orders) -> Child:
        """A child, begun."""
        child = await spawn(orders, self._hear)
        self.children.add(child)
        if self.stopping.begun:  # since it was begun
            self.stopping.tell(child)
        return child

    async def reap(self, child: Child, code: int) -> int | None:
        """A child has ended: whatever it held is given up at once. How much that was, as far as it is known."""
        self._relay.dismiss(child)
        await heard_out(child)
        self.children.discard(child)
        held = 0 if self._services is None else await self._services.reclaimer.give_up(child)
        died = ""
        if child.told_to_stop and child.hello is None and code == -signal.SIGTERM:
            pass  # it was told before it could listen, and had begun nothing
        elif code < 0 or held:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            died = f"worker process {child.pid} {how}; {held or 0} jobs it held can be claimed again"
        elif code not in (codes.OK, codes.INTERRUPTED) and not (child.hello is None and code in (codes.USAGE, codes.SERVER)):
            # The exception: a child that never served has said why, in a line of its own.
            died = f"worker process {child.pid} ended with code {code}"
        if died:
            log.error("%s", died)
            if not child.told_to_stop:
                self._reporter.tell("reclaim", None, WorkerCrashed(died), crash=True)
        self.tally.add(child, code, died, held=held, stopping=self.stopping.begun)
        return held

    def opened(self, code: int) -> None:
        """A circuit is open: its children die as soon as they are started."""
        circuits = [process.circuit for process in self.managed if not process.left]
        deaths = max(circuit.fruitless for circuit in circuits)
        if all(circuit.is_open for circuit in circuits):
            text = "worker processes die as soon as they are started: %d in a row, the last with code %d; the worker gives up"
            log.critical(text, deaths, code)
            self.stopping.stop(codes.SERVER if code == codes.SERVER else codes.CRASHING)
        else:
            text = "%d worker processes in a row died as soon as they were started, the last with code %d; others go on"
            log.error(text, deaths, code)

    # -- what children say -------------------------------------------------------------------------------------------------

    async def _hear(self, child: Child, word: messages.Word) -> None:
        match word:
            case messages.Hello():
                await self._welcome(child, word)
            case messages.Keep(queue, consumer, lease):
                child.leases.add((queue, consumer))
                if self._services is not None:
                    self._services.keeper.keep(queue, consumer, lease)
            case messages.Drop(queue, consumer):
                child.leases.discard((queue, consumer))
                if self._services is not None:
                    self._services.keeper.drop(queue, consumer)
            case messages.Suspects(queue):
                self._spares.isolate(queue)
            case messages.Retiring():
                self.team.retiring(child)
            case messages.Weighed():
                self.team.weighed(word)
            case _:
                pass

    async def _welcome(self, child: Child, hello: messages.Hello) -> None:
        async with self._opening:
            if self._services is None:
                try:
                    deadline = asyncio.get_running_loop().time() + START_SECONDS
                    broker = await patiently(lambda: self._open_broker(hello), deadline, self._missed)
                except BrokerError as error:
                    if not self.stopping.begun:
                        log.critical("the supervisor cannot reach the server: %s", error)
                        self.stopping.stop(codes.SERVER)
                    return
                self._services = SupervisorServices(self, broker, self._reporter)
                self._services.open()
                log.info("serving %s", what_it_serves(self.plan, hello))
        child.welcome()
        if hello.observed and not child.spare and child.writer is not None:
            self._relay.admit(child, child.writer)

    def _missed(self, error: BrokerUnavailable) -> None:
        if self.stopping.begun:
            raise error
        log.debug("the supervisor cannot reach the server yet: %s", error)

    def keeper_ended(self, keeping: asyncio.Task[None]) -> None:
        """Nobody renews the leases any more."""
        if not keeping.cancelled() and not self.stopping.begun:
            log.critical("the keeper of the leases ended; so must the worker")
            self.stopping.stop(codes.FAILED)

    # -- stopping and changing ---------------------------------------------------------------------------------------------

    def _begin_to_stop(self) -> None:
        self.changed.set()
        for process in self.managed:
            process.wake()
        if self._services is not None:
            self._services.reclaimer.stop()
        if not self._lives:
            self._over.set()

    def _stop_now(self) -> None:
        if self._services is not None:
            self._services.reclaimer.let_lapse()

    def _reload(self) -> None:
        self.reloads += 1
        self.changed.set()
        self.changed.clear()
        for child in list(self.children):
            self.stopping.tell(child)


def main() -> None:
    """The process, with its Plan in the environment (``roles``)."""

    async def open_broker(hello: messages.Hello) -> Broker:
        settings = AppSettings(namespace=hello.namespace, id_ttl=hello.id_ttl)
        return await make_backend(parse_url(hello.url), settings).connect()

    plan = msgspec.json.decode(roles.take(roles.PLAN), type=Plan)
    configure_logging(plan.orders.log_level)

    async def run() -> int:
        return (await Supervisor(plan, open_broker).run()).exit_code

    sys.exit(asyncio.run(run()))
