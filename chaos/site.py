"""A site: one server, one app, its workers and a ledger, for trials that declare tasks and topics of their own."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from chaos.checker import Verdict, judge
from chaos.ledger import Ledger
from chaos.server import Engine, PrivateServer
from chaos.stage import Stuck, until
from chaos.workers import Worker, Workers
from millstream import Millstream


class Site:
    """Make it by ``open_site``."""

    def __init__(self, folder: Path, server: PrivateServer, app: Millstream, lease: float, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.server = server
        self.app = app
        self.lease = lease
        self._settings = settings
        self.ledger = Ledger(folder)
        self.workers = Workers(folder)

    def begin_worker(
        self,
        module: str,
        *arguments: str,
        url: str = "",
        environment: Mapping[str, str] = MappingProxyType({}),
        **settings: Any,
    ) -> Worker:
        """Start a worker of the app in this module, which serves a little later. ``url``: another way to the server."""
        settings = {"lease": self.lease, "grace": 5, **self._settings, **settings}
        return self.workers.launch(url or self.server.url, *arguments, app=f"{module}:app", environment=environment, **settings)

    async def until_serving(self, workers: Iterable[Worker]) -> None:
        """Wait until each has a process that claims."""
        for worker in workers:

            async def serves(worker: Worker = worker) -> bool:
                if worker.code is not None:
                    raise Stuck(f"a worker ended with {worker.code}:\n{worker.log}")
                return bool({info.pid for info in await self.app.inspector.workers()} & set(worker.children()))

            await until(serves, "a worker to serve")

    def running(self) -> dict[str, int]:
        """The processes that began each key last."""
        self.ledger.look()
        return {start.key: start.pid for start in self.ledger.starts}

    async def left(self, addresses: Iterable[str]) -> int:
        """How many messages at these addresses have not ended."""
        states = [await self.app.inspector.queue(address) for address in addresses]
        return sum(state.ready + state.running + state.scheduled + state.blocked for state in states)

    async def drained(self, addresses: Iterable[str]) -> float:
        """Wait until nothing is left at these addresses; the seconds it took."""
        addresses = list(addresses)

        async def empty() -> bool:
            return await self.left(addresses) == 0

        return await until(empty, "everything to end")

    async def judge(self, addresses: Iterable[str]) -> Verdict:
        """What became of everything that was sent. How long recoveries may take is for the trial to say."""
        dead = {letter.id: letter.reason for letter in await self.app.dead.list(limit=None)}
        return judge(self.ledger.history(), lease=self.lease, dead=dead, left=await self.left(addresses), bounded=False)

    @property
    def logs(self) -> str:
        """What every worker said."""
        return "\n".join(f"worker {worker.pid} said:\n{worker.log}" for worker in self.workers.all)


@asynccontextmanager
async def open_site(make_app: Callable[..., Millstream], lease: float, engine: Engine, **settings: Any) -> AsyncGenerator[Site]:
    """A server without workers yet, and nothing left of any afterwards. ``settings``: of the app, here and in workers."""
    server = PrivateServer(engine)
    with tempfile.TemporaryDirectory(prefix="chaos-ledger-") as folder:
        site: Site | None = None
        try:
            server.start()
            async with make_app(url=server.url, lease=lease, **settings) as app:
                site = Site(Path(folder), server, app, lease, settings)
                yield site
        finally:
            if site is not None:
                site.workers.clean_up()
                site.ledger.close()
            server.clean_up()
