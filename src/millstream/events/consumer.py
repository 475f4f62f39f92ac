"""Consumers: ``topic.consume`` runs a group's handler in the user's own process until the consumer is closed."""

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
    """Handles a group's events in this process until ``close()`` or ``abort()``. ``topic.consume`` returns it.

    Use it with ``async with`` to close it at the end of the block.
    """

    def __init__(self, subscription: Subscription, worker: Worker, resources: AsyncExitStack, grace: float) -> None:
        self.topic = subscription.topic
        self.group = subscription.group
        self._service = _Service(worker, resources, grace)
        self._heard = False
        """Whether ``close`` has already raised the first error, or ``abort`` was called."""

    @property
    def name(self) -> str:
        """The unique id under which ``millstream workers`` lists this consumer."""
        return self._service.worker.id

    @property
    def running(self) -> bool:
        """Whether the consumer handles events. Stays true while it is closing and handlers still run."""
        return not self._service.ended

    async def close(self, grace: Seconds | None = None) -> None:
        """Stop claiming, let running handlers finish, and release the events that have not started. Closing again does nothing.

        Raises the first error that was not handled otherwise: the consumer itself failed, the server refused an outcome, or a
        handler raised although its events are not retried (``ack="on_receive"`` or ``"manual"``).

        Args:
            grace: Seconds that running handlers have to finish. ``None`` uses the app's ``grace``.
        """
        service = self._service
        await service.stop(service.grace if grace is None else seconds(grace, "grace"))
        error, heard, self._heard = service.worker.first_error, self._heard, True
        if error is not None and not heard:
            raise error

    async def abort(self) -> None:
        """Stop immediately: cancel running handlers and return their events to the group.

        A ``close()`` that is waiting for handlers ends too.
        """
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
            warnings.warn(f"{self!r} was never closed: call close(), or use `async with`", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<consumer {self.name} of group {self.group!r} of topic {self.topic!r}>"


class _Service:
    """The worker behind a consumer. It has no reference to the consumer, so that a dropped consumer can be
    garbage-collected."""

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
            if not self.worker.failed.is_set():  # if it failed, the watching task calls this method too
                self._watching.cancel()
            await self._resources.aclose()

    def stop_soon(self) -> None:
        """Begin to stop. Safe to call from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is already closed
            self._loop.call_soon_threadsafe(self._begin_to_stop)

    def _begin_to_stop(self) -> None:
        self._watching.cancel()
        self._watching = self._loop.create_task(self.stop(self.grace), name="millstream-consumer")

    async def _stop_if_it_fails(self) -> None:
        await self.worker.failed.wait()
        await self.stop(self.grace)
