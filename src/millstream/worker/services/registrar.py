"""The registrar: lists a worker in the registry while it lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millstream.broker import Registering, WorkerInfo
from millstream.errors import BrokerError
from millstream.reporting.reporter import Reporter

BEAT_SECONDS = 5.0
TTL_SECONDS = 2.5 * BEAT_SECONDS
"""Seconds after which a registration expires: a worker that missed two beats is no longer listed."""


class Registrar:
    """Registers the worker at every beat and removes it at the end."""

    def __init__(self, broker: Registering, info: Callable[[], WorkerInfo], reporter: Reporter) -> None:
        self._broker = broker
        self._info = info
        self._reporter = reporter

    async def beat(self) -> None:
        """Register once. Raises BrokerError if that fails."""
        await self._broker.register(self._info(), TTL_SECONDS)

    async def show(self) -> None:
        """Register once, and only report a failure."""
        try:
            await self.beat()
        except BrokerError as error:
            self._reporter.fail("maintenance", None, error, "could not register: %s", error, level=logging.DEBUG)

    async def run(self) -> None:
        """Register at every beat until cancelled. A failure is only a debug line: the worker logs outages elsewhere."""
        failing = False
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                await self.beat()
            except BrokerError as error:
                self._reporter.fail("maintenance", None, error, "could not register: %s", error, level=logging.DEBUG)
                failing = True
            else:
                if failing:
                    self._reporter.heal("maintenance", None)
                failing = False

    async def leave(self) -> None:
        """Remove the worker from the registry."""
        try:
            await self._broker.unregister(self._info().id)
        except BrokerError as error:
            self._reporter.fail("maintenance", None, error, "could not unregister: %s", error, level=logging.DEBUG)
