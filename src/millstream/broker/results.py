"""Waiting for the ending of a job. A backend pushes endings to the clients that wait for them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from millstream.model.address import Address


class ResultStore(ABC):
    """Stores endings for a limited time, and lets callers wait for them."""

    @abstractmethod
    async def get(self, queue: Address, job_id: str) -> bytes | None:
        """Return the encoded Ending, or None if none is stored."""

    @abstractmethod
    async def wait(self, queue: Address, job_id: str, timeout: float | None) -> bytes | None:
        """Wait for the encoded Ending and return it. None means that the job is unknown and left nothing behind.

        Reading and registering as a waiter is one atomic step, so no ending is missed. Waiting survives a reconnect. Raises
        TimeoutError.
        """
