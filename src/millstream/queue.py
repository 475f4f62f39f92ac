"""A queue, as an app declares it."""

from __future__ import annotations

from millstream.client import Clients, twin
from millstream.settings import QueueSettings


class Queue:
    """A named queue of this app. Workers serve it; producers send to it whether it is paused or not."""

    def __init__(self, settings: QueueSettings, clients: Clients) -> None:
        self.settings = settings
        self._clients = clients

    @property
    def name(self) -> str:
        """Its name."""
        return self.settings.name

    @property
    def max_length(self) -> int | None:
        """How many ready, running and scheduled jobs it takes before ``enqueue`` raises QueueFull; None: no bound."""
        return self.settings.max_length

    async def pause(self) -> None:
        """No job of this queue starts until ``resume``, on any worker, after a restart too. What runs goes on."""
        await self._clients.here().ask(lambda broker: broker.pause(self.name))

    async def resume(self) -> None:
        """Undo ``pause``."""
        await self._clients.here().ask(lambda broker: broker.resume(self.name))

    pause_sync = twin(pause)
    resume_sync = twin(resume)

    def __repr__(self) -> str:
        return f"<queue {self.name!r}>"
