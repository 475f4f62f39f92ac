"""A consumer: a group's handler at work in the user's own process, from ``topic.consume`` until it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from millstream.events.subscription import Subscription
from millstream.model.settings import seconds
from millstream.model.types import Seconds
from millstream.worker.worker import Worker


class Consumer:
    """Handles a group's events until ``close`` or ``abort``; ``async with`` closes it too."""

    def __init__(self, subscription: Subscription, worker: Worker, resources: AsyncExitStack, grace: float) -> None:
        self.topic = subscription.topic
        self.group = subscription.group
        self._service = _Service(worker, resources, grace)
        self._heard = False
        """Whoever closed it has heard how it went."""

    @property
    def name(self) -> str:
        """Under which it is listed among the workers: no other is called so."""
        return self._service.worker.id

    @property
    def running(self) -> bool:
        """Whether it handles events, or still ends what it began."""
        return not self._service.ended

    async def close(self, grace: Seconds | None = None) -> None:
        """Claim no more, let what runs end within ``grace`` seconds (else the app's), hand back the rest.

        Raises the first error that nobody has heard of: the consumer could not go on, an outcome was refused, or a handler
        raised whose events are not tried again (``ack="on_receive"`` or ``"manual"``). To close it again does nothing.
        """
        service = self._service
        await service.stop(service.grace if grace is None else seconds(grace, "grace"))
        error, heard, self._heard = service.worker.first_error, self._heard, True
        if error is not None and not heard:
            raise error

    async def abort(self) -> None:
        """Stop now: what runs is cancelled and handed back, to be handled elsewhere. Ends the wait of a ``close``, too."""
        self._heard = True
        self._service.worker.hurry()
        await self._service.stop(0.0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if not self._service.begun_to_stop:
            self._service.stop_soon()
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<consumer {self.name} of group {self.group!r} of topic {self.topic!r}>"


class _Service:
    """What a consumer is made of; it does not know the consumer, which can be dropped while this runs."""

    def __init__(self, worker: Worker, resources: AsyncExitStack, grace: float) -> None:
        self.worker = worker
        self.grace = grace
        self.ended = False
        self.begun_to_stop = False
        self._resources = resources
        self._loop = asyncio.get_running_loop()
        self._watching = self._loop.create_task(self._stop_if_it_fails(), name="millstream-consumer")

    async def stop(self, grace: float) -> None:
        self.begun_to_stop = True
        try:
            await self.worker.stop(grace)
        finally:
            self.ended = True
            if not self.worker.failed.is_set():  # else it does the same
                self._watching.cancel()
            await self._resources.aclose()

    def stop_soon(self) -> None:
        """From anywhere."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._begin_to_stop)

    def _begin_to_stop(self) -> None:
        self._watching.cancel()
        self._watching = self._loop.create_task(self.stop(self.grace), name="millstream-consumer")

    async def _stop_if_it_fails(self) -> None:
        await self.worker.failed.wait()
        await self.stop(self.grace)
