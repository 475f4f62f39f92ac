"""A site: one server, one app, its workers and a ledger, for trials that declare their own tasks and topics."""

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
    """Created by ``open_site``."""

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
        """Start a worker of the app in this module without waiting until it is ready. ``url``: another URL of the server."""
        settings = {"lease": self.lease, "grace": 5, **self._settings, **settings}
        return self.workers.launch(url or self.server.url, *arguments, app=f"{module}:app", environment=environment, **settings)

    async def until_serving(self, workers: Iterable[Worker]) -> None:
        """Wait until each worker has a process that claims."""
        for worker in workers:

            async def serves(worker: Worker = worker) -> bool:
                if worker.code is not None:
                    raise Stuck(f"a worker ended with {worker.code}:\n{worker.log}")
                return bool({info.pid for info in await self.app.inspector.workers()} & set(worker.children()))

            await until(serves, "a worker to be ready")

    def running(self) -> dict[str, int]:
        """Return the process that started each key last."""
        self.ledger.look()
        return {start.key: start.pid for start in self.ledger.starts}

    async def left(self, addresses: Iterable[str]) -> int:
        """Return the number of unfinished messages at these addresses."""
        states = [await self.app.inspector.queue(address) for address in addresses]
        return sum(state.ready + state.running + state.scheduled + state.blocked for state in states)

    async def drained(self, addresses: Iterable[str]) -> float:
        """Wait until these addresses are empty. Return the seconds it took."""
        addresses = list(addresses)

        async def empty() -> bool:
            return await self.left(addresses) == 0

        return await until(empty, "every message to end")

    async def judge(self, addresses: Iterable[str]) -> Verdict:
        """Judge everything that was sent. The trial itself decides how long recoveries may take."""
        dead = {letter.id: letter.reason for letter in await self.app.dead.list(limit=None)}
        return judge(self.ledger.history(), lease=self.lease, dead=dead, left=await self.left(addresses), bounded=False)

    @property
    def logs(self) -> str:
        """The logs of all workers."""
        return "\n".join(f"log of worker {worker.pid}:\n{worker.log}" for worker in self.workers.all)


@asynccontextmanager
async def open_site(make_app: Callable[..., Millstream], lease: float, engine: Engine, **settings: Any) -> AsyncGenerator[Site]:
    """Start a server without workers, and clean everything up at the end. ``settings``: of the app, here and in the workers."""
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
