"""Waiting for how a job ended: pushed, never polled."""

from __future__ import annotations

from abc import ABC, abstractmethod

from millstream.model.address import Address


class ResultStore(ABC):
    """Endings, kept for a while, and the waiting for them."""

    @abstractmethod
    async def get(self, queue: Address, job_id: str) -> bytes | None:
        """The encoded Ending, or None if there is none now."""

    @abstractmethod
    async def wait(self, queue: Address, job_id: str, timeout: float | None) -> bytes | None:
        """The encoded Ending as soon as there is one. None: the job is unknown and left nothing.

        Looking and registering is one step, so nothing is missed in between; survives a reconnect. Raises TimeoutError.
        """
