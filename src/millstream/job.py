"""A job in the hands of whoever sent it, or found it again: its result, its status, its cancelling."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from millstream.broker import Cancellation, DeadLetter
from millstream.client import Clients, twin
from millstream.codec import InvalidResult
from millstream.errors import (
    BrokerUnavailable,
    JobCancelled,
    JobExpired,
    JobFailed,
    ResultError,
    ResultsDisabled,
    ResultTimeout,
)
from millstream.outcome import Letter, decode_ending
from millstream.settings import seconds
from millstream.types import Seconds, Status

R_co = TypeVar("R_co", covariant=True)

ERROR_CHARACTERS = 200
"""How much of an error's text fits the one line of a JobFailed; the whole of it is in ``error``."""

LAST_LOOK_SECONDS = 1.0
"""How long a wait that has timed out may still take to say where the job is."""


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What all jobs of one task, sent one way, have in common."""

    clients: Clients
    queue: str
    task: str
    """Empty: not known."""
    decode: Callable[[bytes | msgspec.Raw], Any]
    """Reads a kept result; InvalidResult if it is of another type."""
    keeps_results: bool
    address: str = ""
    """The shard of the queue that it is in. Empty: the queue itself, or if it has shards any of them."""


class Job(msgspec.Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """A job that was accepted. Holds no connection: every question goes to the server.

    Not tracked by the garbage collector, because a bulk call makes a million of them: it refers to nothing that refers back.
    """

    id: str
    created: bool
    """Whether this enqueue made it; False if its id was known already, and for a job that was looked up."""
    _origin: Origin

    @property
    def queue(self) -> str:
        """The queue it was sent to; if that has shards, the whole's name."""
        return self._origin.queue

    @property
    def task(self) -> str:
        """The name of its task; empty if it was looked up without one."""
        return self._origin.task

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """What the job returned, as soon as it has; ``timeout`` in seconds, 0 only looks, None waits for ever.

        Raises JobFailed if it is dead, JobCancelled, JobExpired, ResultTimeout saying where it is and whether any worker
        serves its queue, and ResultsDisabled if nothing is kept of it.
        """
        origin, job_id = self._origin, self.id
        patience = None if timeout is None else seconds(timeout, "timeout")
        if not origin.keeps_results:
            raise ResultsDisabled(f"{self} keeps no result: it was sent with result_ttl=0", job_id)
        client, payload, waiting = origin.clients.here(), None, asyncio.timeout(patience)
        address: str | None = origin.queue
        with contextlib.suppress(TimeoutError):
            async with waiting:
                address = await self._find()
                if address is not None:
                    where = address
                    payload = await client.ask(lambda broker: broker.results.wait(where, job_id, None))
        if waiting.expired():
            payload = await self._last_look(patience or 0.0)
        if payload is None:
            raise await self._left_nothing(address)
        ending = decode_ending(payload)
        if ending.letter is not None:
            raise self._failed(ending.letter)
        if ending.status == "cancelled":
            raise JobCancelled(f"{self} was cancelled before it ran", job_id)
        if ending.status == "expired":
            raise JobExpired(f"{self} was not started before it expired", job_id)
        try:
            value: R_co = origin.decode(ending.value)
        except InvalidResult as error:
            raise ResultError(f"{self}: {error}", job_id) from error
        return value

    async def status(self) -> Status:
        """Where the job is now; ``unknown`` if it left nothing behind, as one with ``result_ttl=0`` does."""
        address = await self._find()
        if address is None:
            return "unknown"
        return await self._origin.clients.here().ask(lambda broker: broker.inspector.status(address, self.id))

    async def cancel(self) -> bool:
        """True: it was waiting, and will not run. False: it is running, or has ended."""
        address = await self._find()
        if address is None:
            return False
        answer = await self._origin.clients.here().ask(lambda broker: broker.cancel(address, self.id))
        return answer is Cancellation.CANCELLED

    result_sync = twin(result)
    status_sync = twin(status)
    cancel_sync = twin(cancel)

    async def _find(self) -> str | None:
        """The address at which it is: its queue, or that of its shards which knows it; None: none of them does, now."""
        origin = self._origin
        if origin.address:
            return origin.address
        client = origin.clients.here()
        if client.opening.declares(origin.queue):
            addresses = client.spread(origin.queue) or [origin.queue]
        else:
            addresses = await client.addresses(origin.queue)
        return addresses[0] if len(addresses) == 1 else await client.find_job(addresses, self.id)

    async def _last_look(self, patience: float) -> bytes:
        """The ending if it is there after all, else ResultTimeout."""
        waited = f"{self} had not ended after {patience:g} s"
        try:
            async with asyncio.timeout(LAST_LOOK_SECONDS):
                broker = await self._origin.clients.here().broker()
                address = await self._find() or self.queue
                payload = await broker.results.get(address, self.id)
                if payload is not None:
                    return payload
                status = await broker.inspector.status(address, self.id)
                served = (await broker.inspector.queue(address)).consumers > 0
        except (BrokerUnavailable, TimeoutError) as error:
            reason = str(error) or "the server does not answer"
            raise ResultTimeout(f"{waited}, and its state could not be read: {reason}", self.id, "unknown", False) from error
        who = "workers serve" if served else "no worker serves"
        raise ResultTimeout(f"{waited}: it is {status}, and {who} its queue", self.id, status, served)

    async def _left_nothing(self, address: str | None) -> ResultError:
        if address is not None:
            letter = await self._origin.clients.here().ask(lambda broker: broker.inspector.dead_letter(address, self.id))
            if letter is not None:
                return self._failed(letter)
        return ResultsDisabled(
            f"{self} left no result: none is kept of it (result_ttl=0), it was kept and has expired, or there was no such job",
            self.id,
        )

    def _failed(self, letter: Letter | DeadLetter) -> JobFailed:
        if isinstance(letter, DeadLetter):
            letter = letter.letter
        error = letter.error
        text = " ".join(error.message.split())
        if len(text) > ERROR_CHARACTERS:
            text = text[:ERROR_CHARACTERS] + "…"
        message = f"{self} is dead ({letter.reason}): {error.type}: {text}"
        return JobFailed(message, self.id, letter.reason, error.type, error.message, error.traceback)

    def __str__(self) -> str:
        task = f" of task {self.task!r}" if self.task else ""
        return f"job {self.id!r}{task} in queue {self.queue!r}"

    def __repr__(self) -> str:
        return f"<{self}>"
