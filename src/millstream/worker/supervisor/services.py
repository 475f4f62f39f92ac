"""The services of a supervisor that need a server. They start once a child has reported the server's URL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable

from millstream._version import __version__
from millstream.broker import Broker, Team, WorkerInfo
from millstream.reporting.problem import During
from millstream.reporting.reporter import Reporter
from millstream.worker.scaling.requests import answer_requests
from millstream.worker.services import keep_running
from millstream.worker.services.keeper import Keeper
from millstream.worker.services.registrar import Registrar
from millstream.worker.supervisor.reclaimer import Reclaimer
from millstream.worker.supervisor.team import ProcessTeam


class SupervisorServices:
    """Renews leases, gives up those of dead children, registers the supervisor, scales, and answers scaling requests.

    ``name`` is the supervisor's id in the registry. ``totals`` returns the settled outcomes of its children.
    """

    def __init__(
        self, name: str, broker: Broker, reporter: Reporter, team: ProcessTeam, totals: Callable[[], dict[str, int]]
    ) -> None:
        self.keeper = Keeper(broker, reporter)
        self.reclaimer = Reclaimer(broker, self.keeper, reporter)
        self._name = name
        self._broker = broker
        self._reporter = reporter
        self._team = team
        self._totals = totals
        self._registrar = Registrar(broker, self._info, reporter)
        self._scaler = team.open(broker.inspector, self._registrar.show)
        self._began = time.time()
        self._running: list[asyncio.Task[None]] = []

    def open(self, keeper_ended: Callable[[], object]) -> None:
        """Start all services. ``keeper_ended`` is called if the keeper ends before ``close``."""
        keeping = self._serve("keeper", self.keeper.run, "renew")
        keeping.add_done_callback(lambda task: None if task.cancelled() else keeper_ended())
        self._serve("registrar", self._register, "maintenance")
        self._serve("answers", self._answer, "maintenance")
        if self._team.strategy:
            self._serve("scaler", self._scaler.run, "maintenance")

    async def close(self) -> None:
        """Stop all services, unregister, and close the connection."""
        for service in self._running:
            service.cancel()
        with contextlib.suppress(OSError):  # no free file descriptors: the registration expires on its own
            await self._registrar.leave()
        await self._broker.close()

    def _serve(self, name: str, run: Callable[[], Awaitable[None]], during: During) -> asyncio.Task[None]:
        task = asyncio.create_task(keep_running(name, run, self._reporter, during))
        self._running.append(task)
        return task

    async def _register(self) -> None:
        await self._registrar.show()
        await self._registrar.run()

    async def _answer(self) -> None:
        await answer_requests(self._broker.control, self._name, self._scaler.by_hand)

    def _info(self) -> WorkerInfo:
        team, scaler = self._team, self._scaler
        return WorkerInfo(
            id=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            queues=[*map(str, team.addresses)],
            started=self._began,
            totals=self._totals(),
            team=Team(
                processes=team.processes,
                minimum=team.minimum,
                maximum=team.maximum,
                strategy=team.strategy,
                decisions=dict(scaler.decisions),
                last=scaler.last,
                by_hand_until=scaler.by_hand_until,
                rates=team.rates,
            ),
        )
