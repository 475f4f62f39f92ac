"""What a supervisor does with a server, once a child has told where it is."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

from millstream._version import __version__
from millstream.broker import Broker, Team, WorkerInfo
from millstream.reporting.reporter import Reporter
from millstream.worker.scaling.requests import answer_requests
from millstream.worker.services import keep_running
from millstream.worker.services.keeper import Keeper
from millstream.worker.services.registrar import Registrar
from millstream.worker.supervisor.reclaimer import Reclaimer

if TYPE_CHECKING:
    from millstream.worker.supervisor.supervisor import Supervisor


class SupervisorServices:
    """Keeps leases, gives up those of the dead, is seen in the registry, scales, and answers those who ask for that."""

    def __init__(self, supervisor: Supervisor, broker: Broker, reporter: Reporter) -> None:
        self.keeper = Keeper(broker, reporter)
        self.reclaimer = Reclaimer(broker, self.keeper, reporter)
        self._supervisor = supervisor
        self._broker = broker
        self._reporter = reporter
        self._registrar = Registrar(broker, self._info, reporter)
        self._scaler = supervisor.team.open(broker, self._registrar.show)
        self._began = time.time()

    def open(self) -> None:
        """Begin all of it."""
        supervisor, reporter = self._supervisor, self._reporter
        keeping = supervisor.serve(keep_running("keeper", self.keeper.run, reporter, "renew"))
        keeping.add_done_callback(supervisor.keeper_ended)
        supervisor.serve(keep_running("registrar", self._register, reporter, "maintenance"))
        supervisor.serve(keep_running("answers", self._answer, reporter, "maintenance"))
        if supervisor.plan.scales:
            supervisor.serve(keep_running("scaler", self._scaler.run, reporter, "maintenance"))

    async def close(self) -> None:
        """Be seen no more, and let go of the server."""
        with contextlib.suppress(OSError):  # this machine has no file left: the server forgets us by itself
            await self._registrar.leave()
        await self._broker.close()

    async def _register(self) -> None:
        await self._registrar.show()
        await self._registrar.run()

    async def _answer(self) -> None:
        await answer_requests(self._broker.control, self._supervisor.id, self._scaler.by_hand)

    def _info(self) -> WorkerInfo:
        supervisor, team, scaler = self._supervisor, self._supervisor.team, self._scaler
        return WorkerInfo(
            id=supervisor.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            queues=team.addresses,
            started=self._began,
            totals=supervisor.tally.totals(supervisor.children),
            team=Team(
                processes=team.processes,
                minimum=team.minimum,
                maximum=team.maximum,
                strategy=supervisor.plan.strategy if supervisor.plan.scales else "",
                decisions=dict(scaler.decisions),
                last=scaler.last,
                by_hand_until=scaler.by_hand_until,
                rates=team.rates,
            ),
        )
