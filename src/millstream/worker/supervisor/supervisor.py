"""The supervisor: keeps the wanted number of worker processes running, and renews their leases.

It never imports user code, so no handler can starve it. A child passes its problems to the app's observers (``relay``).
When a child dies, the supervisor gives up its leases immediately, so that its jobs run elsewhere within a second.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import msgspec

from millstream.aio.backoff import START_SECONDS, patiently
from millstream.backends import make_backend
from millstream.broker import Broker
from millstream.errors import BrokerError, BrokerUnavailable
from millstream.model.settings import AppSettings
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.url import parse_url
from millstream.worker import codes, messages, roles
from millstream.worker.logs import configure_logging
from millstream.worker.summary import Summary
from millstream.worker.supervisor.children.child import Child
from millstream.worker.supervisor.children.launcher import Launcher
from millstream.worker.supervisor.children.lives import Lives
from millstream.worker.supervisor.children.processes import Processes
from millstream.worker.supervisor.children.spares import Spares
from millstream.worker.supervisor.plan import Plan
from millstream.worker.supervisor.recycling import recycle
from millstream.worker.supervisor.relay import Relay
from millstream.worker.supervisor.reloader import Reloads, watch_sources
from millstream.worker.supervisor.services import SupervisorServices
from millstream.worker.supervisor.start_line import what_it_serves
from millstream.worker.supervisor.stopping import Stopping
from millstream.worker.supervisor.team import ProcessTeam
from millstream.worker.supervisor.wedged import watch_for_wedged

log = logs.logger("millstream.worker")


class Supervisor:
    """Runs a Plan until a signal, or until a burst is over. It creates and connects the parts of the supervisor."""

    def __init__(self, plan: Plan, open_broker: Callable[[messages.Hello], Awaitable[Broker]]) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.plan = plan
        self.children: set[Child] = set()
        self.stopping = Stopping(self.children, begin=self._begin_to_stop, now=self._stop_now)
        self.relay = Relay()
        self.reporter = Reporter(self.relay, log)
        self.launcher = Launcher(
            self.children, self.stopping, self.relay, self.reporter, hear=self._hear, give_up=self._give_up
        )
        self.lives = Lives(lambda: self.stopping.stop(codes.FAILED))
        self.reloads = Reloads()
        orders = msgspec.structs.replace(plan.orders, supervisor=self.id)
        self.processes = Processes(
            orders, self.launcher, self.lives, self.stopping, self.reloads, lambda: self.services is not None
        )
        self.spares = Spares(orders, self.launcher, self.lives, self.stopping)
        self.team = ProcessTeam(plan, self.processes, self.children, self.stopping)
        self.services: SupervisorServices | None = None
        """None until a child has reported the server's URL and the supervisor has connected."""
        self._open_broker = open_broker
        self._opening = asyncio.Lock()

    async def run(self) -> Summary:
        """Start the children, keep them running until the worker is stopped, and return the summary."""
        self.stopping.catch_signals()
        for _ in range(self.plan.processes):
            self.processes.begin()
        watching = [asyncio.create_task(watch) for watch in self._watches()]
        await self.lives.over.wait()
        for task in watching:
            task.cancel()
        if self.services is not None:
            await self.services.close()
        summary = self.launcher.tally.summary(self.stopping.reason)
        if self.services is not None:
            log.info("stopped: %s", summary)
        return summary

    def _watches(self) -> Iterator[Coroutine[Any, Any, None]]:
        """The checks that run as long as the worker runs."""
        yield watch_for_wedged(self.children, self.reporter, self.relay)
        if self.plan.reload:
            yield watch_sources(self._reload)
        if self.plan.orders.max_jobs or self.plan.orders.max_memory:
            yield recycle(self.processes, self.stopping)

    def make_services(self, broker: Broker) -> SupervisorServices:
        """Return the services that use the server."""
        return SupervisorServices(self.id, broker, self.reporter, self.team, self.launcher.totals)

    # -- messages from children --------------------------------------------------------------------------------------------

    async def _hear(self, child: Child, word: messages.Word) -> None:
        match word:
            case messages.Hello():
                await self._welcome(child, word)
            case messages.Keep(queue, consumer, lease):
                child.leases.add((queue, consumer))
                if self.services is not None:
                    self.services.keeper.keep(queue, consumer, lease)
            case messages.Drop(queue, consumer):
                child.leases.discard((queue, consumer))
                if self.services is not None:
                    self.services.keeper.drop(queue, consumer)
            case messages.Suspects(queue):
                self.spares.isolate(queue)
            case messages.Retiring():
                self.team.retiring(child)
            case messages.Weighed():
                self.team.weighed(word)
            case _:
                pass

    async def _welcome(self, child: Child, hello: messages.Hello) -> None:
        async with self._opening:
            if self.services is None:
                try:
                    deadline = asyncio.get_running_loop().time() + START_SECONDS
                    broker = await patiently(lambda: self._open_broker(hello), deadline, self._missed)
                except BrokerError as error:
                    if not self.stopping.begun:
                        log.critical("the supervisor cannot reach the server; the worker stops: %s", error)
                        self.stopping.stop(codes.SERVER)
                    return
                self.services = self.make_services(broker)
                self.services.open(self._keeper_ended)
                log.info("serving %s", what_it_serves(self.plan, hello))
        child.welcome()
        if hello.observed and not child.spare and child.writer is not None:
            self.relay.admit(child, child.writer)

    def _missed(self, error: BrokerUnavailable) -> None:
        if self.stopping.begun:
            raise error
        log.debug("the supervisor cannot reach the server yet: %s", error)

    async def _give_up(self, child: Child) -> int | None:
        """Give up a child's leases and return how many jobs it held. Without a server, a child holds nothing."""
        return 0 if self.services is None else await self.services.reclaimer.give_up(child)

    def _keeper_ended(self) -> None:
        """Stop the worker, because its leases are not renewed any more."""
        if not self.stopping.begun:
            log.critical("the service that renews leases ended unexpectedly; the worker stops")
            self.stopping.stop(codes.FAILED)

    # -- stopping and reloading --------------------------------------------------------------------------------------------

    def _begin_to_stop(self) -> None:
        self.reloads.stop()
        self.processes.wake()
        if self.services is not None:
            self.services.reclaimer.stop()
        self.lives.end_if_none()

    def _stop_now(self) -> None:
        if self.services is not None:
            self.services.reclaimer.let_lapse()

    def _reload(self) -> None:
        self.reloads.add()
        for child in list(self.children):
            self.stopping.tell(child)


def main() -> None:
    """Run the supervisor process. Its Plan is in the environment (``roles``)."""

    async def open_broker(hello: messages.Hello) -> Broker:
        settings = AppSettings(namespace=hello.namespace, id_ttl=hello.id_ttl)
        return await make_backend(parse_url(hello.url), settings).connect()

    plan = msgspec.json.decode(roles.take(roles.PLAN), type=Plan)
    configure_logging(plan.orders.log_level)

    async def run() -> int:
        return (await Supervisor(plan, open_broker).run()).exit_code

    sys.exit(asyncio.run(run()))
