"""A job in the hands of whoever sent it, or found it again: its result, its status, its cancelling."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from millstream.broker import Cancellation, JobView, Why
from millstream.broker.explaining import explain
from millstream.client import Client, Clients, new_request, sync_version
from millstream.errors import (
    BrokerError,
    BrokerUnavailable,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    ResultError,
    ResultsDisabled,
    ResultTimeout,
    UsageError,
)
from millstream.jobs.info import JobInfo
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter
from millstream.model.ending import Ending, decode_ending
from millstream.model.invalid import InvalidResult
from millstream.model.settings import seconds
from millstream.model.types import Seconds, Status
from millstream.reporting import logs

log = logs.logger("millstream")

R_co = TypeVar("R_co", covariant=True)

ERROR_CHARACTERS = 200
"""How much of an error's text fits the one line of a JobFailed; the whole of it is in ``error``."""

LONG_WAIT_SECONDS = 5.0
"""After this long a wait for a result logs what the job waits for, if that may last."""

HELD_UP = frozenset(("read_only", "full", "paused", "no_worker", "unknown_task", "stopped_key"))
"""Reasons that somebody must remove."""

LAST_LOOK_SECONDS = 1.0
"""How long a wait that has timed out may still take to say where the job is."""


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What all jobs of one task, sent one way, have in common."""

    clients: Clients
    queue: str
    """Empty: not known, so every queue is searched."""
    task: str
    """Empty: not known."""
    decode: Callable[[bytes | msgspec.Raw], Any]
    """Reads a kept result; InvalidResult if it is of another type."""
    keeps_results: bool
    address: Address | None = None
    """The shard of the queue that it is in. None: the queue itself, or if it has shards any of them."""
    looked_up: bool = False
    """Known by its id alone, so there may be no such job."""


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
        """The queue it was sent to; of one with shards, the whole's name. Empty if it was looked up without a queue."""
        return self._origin.queue

    @property
    def task(self) -> str:
        """The name of its task; empty if it was looked up without one."""
        return self._origin.task

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """What the job returned, as soon as it has. ``timeout`` is in seconds: 0 only looks, None waits without limit.

        Raises JobFailed if it is dead, JobCancelled, JobExpired, ResultTimeout saying why it has not ended, ResultsDisabled if
        nothing is kept of it, and JobNotFound if it was looked up by its id and no queue knows it.
        """
        origin, job_id = self._origin, self.id
        patience = None if timeout is None else seconds(timeout, "timeout")
        if not origin.keeps_results:
            raise ResultsDisabled(f"{self} keeps no result: it was sent with result_ttl=0", job_id)
        client, waiting = origin.clients.here(), asyncio.timeout(patience)
        ending: Ending | None = None
        telling = client.loop.call_later(LONG_WAIT_SECONDS, client.in_background, self._tell_what_holds_it_up)
        try:
            with contextlib.suppress(TimeoutError):
                async with waiting:
                    while ending is None:
                        ending = await self._wait(client)
        finally:
            telling.cancel()
        if ending is None:
            ending = await self._last_look(patience or 0.0)
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
        """True: it was waiting, and will not run. False: it is running, or has ended.

        Raises JobNotFound if it was looked up by its id and no queue knows it.
        """
        address = await self._find()
        client, answer = self._origin.clients.here(), Cancellation.ENDED
        if address is not None:
            where, request = address, new_request()
            answer = await client.ask(lambda broker: broker.cancel(where, self.id, request=request))
        if answer is Cancellation.ENDED and self._origin.looked_up and await self.status() == "unknown":
            raise self._not_found()
        return answer is Cancellation.CANCELLED

    async def info(self) -> JobInfo:
        """What is known of the job now: its attempt, last error, due time, worker, and why it is not running.

        Raises JobNotFound if no queue knows it, as of one that ended with ``result_ttl=0``.
        """
        address = await self._find()
        if address is not None:
            where = address
            facts = await self._origin.clients.here().ask(lambda broker: broker.inspector.facts(where, self.id))
            if facts.view is not None:
                return JobInfo.of(facts.view, facts)
        raise self._not_found()

    result_sync = sync_version(result)
    status_sync = sync_version(status)
    cancel_sync = sync_version(cancel)
    info_sync = sync_version(info)

    async def _find(self) -> Address | None:
        """The address of the queue, or of the shard, that knows it; None if none does. UsageError if several queues do.

        A queue without shards is not asked.
        """
        origin = self._origin
        if origin.address is not None:
            return origin.address
        client = origin.clients.here()
        if not origin.queue:
            found = await client.find_everywhere(self.id)
            if len(found) > 1:
                names = ", ".join(repr(address.name) for address in found)
                raise UsageError(f"there is a job {self.id!r} in several queues, {names}: choose one with app.job(id, queue=…)")
            return found[0] if found else None
        queue = Address(origin.queue)
        if client.opening.declares(queue):
            addresses = client.publisher(queue).shards or [queue]
        else:
            addresses = await client.addresses(queue)
        return addresses[0] if len(addresses) == 1 else await client.find_job(addresses, self.id)

    async def _tell_what_holds_it_up(self) -> None:
        """Log, for a caller that has waited for long, what the job waits for if it does not end by itself.

        One job speaks for all of its task that are waited for: a caller that waits for thousands is told once.
        """
        clients = self._origin.clients
        if not clients.here().may_explain(self.queue, self.task, LONG_WAIT_SECONDS):
            return
        with contextlib.suppress(BrokerError):
            broker, address = await clients.here().broker(), await self._find()
            if address is not None:
                why = explain(await broker.inspector.facts(address, self.id))
                if HELD_UP.intersection((why.code, *why.also)):
                    log.warning("%s at %s has not ended for %g s: %s", self, clients.where, LONG_WAIT_SECONDS, why.text)

    async def _wait(self, client: Client) -> Ending | None:
        """Wait for the ending. ``None``: it was dead without one, and was replayed. Raises what says that there is none."""
        address = await self._find()
        if address is None:
            raise self._left_nothing()
        payload = await client.ask(lambda broker: broker.results.wait(address, self.id, None))
        if payload is not None:
            return decode_ending(payload)
        return self._ending_in(await client.ask(lambda broker: broker.inspector.job(address, self.id)))

    async def _last_look(self, patience: float) -> Ending:
        """The ending if it is there after all. Raises ResultTimeout, or what says that there will be none."""
        clients = self._origin.clients
        waited = f"{self} at {clients.where} had not ended after {patience:g} s"
        try:
            async with asyncio.timeout(LAST_LOOK_SECONDS):
                broker = await clients.here().broker()
                address = await self._find()
                payload = None if address is None else await broker.results.get(address, self.id)
                if payload is not None:
                    return decode_ending(payload)
                facts = None if address is None else await broker.inspector.facts(address, self.id)
                # The job may have ended since that look. The view shows its state and its ending as of one moment.
                ending = self._ending_in(None if facts is None else facts.view)
                if ending is not None:
                    return ending
        except (BrokerUnavailable, TimeoutError) as error:
            reason = str(error) or clients.here().why_silent(LAST_LOOK_SECONDS)
            why = await self._refusal()
            text = f"{waited}, and its state could not be read: {reason}"
            raise ResultTimeout(text, self.id, "unknown", False, why) from error
        assert facts is not None and facts.view is not None
        why = explain(facts)
        served = "no_worker" not in (why.code, *why.also)
        raise ResultTimeout(f"{waited}: {why.text}", self.id, facts.view.status, served, why)

    def _ending_in(self, view: JobView | None) -> Ending | None:
        """The ending; ``None`` if the job has not ended. Raises what says that there is none, or JobFailed if it is dead."""
        if view is None:
            raise self._left_nothing()
        if view.ending is None and view.letter is not None:
            raise self._failed(view.letter)
        return view.ending

    async def _refusal(self) -> Why | None:
        """Why the server refuses writes, if it does and says so."""
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(LAST_LOOK_SECONDS):
                trouble = await (await self._origin.clients.here().broker()).inspector.trouble()
                return None if trouble is None else Why(code=trouble.code, text=trouble.text)
        return None

    def _left_nothing(self) -> ResultError:
        if self._origin.looked_up:
            return self._not_found()
        return ResultsDisabled(
            f"{self} left no result: none is kept of it (result_ttl=0), it was kept and has expired, or there was no such job",
            self.id,
        )

    def _not_found(self) -> JobNotFound:
        where = self._origin.clients.where
        text = f"{self} is not known at {where}: it ended and left no result, or there was no such job"
        return JobNotFound(text, self.id)

    def _failed(self, letter: DeadLetter) -> JobFailed:
        error = letter.error
        text = " ".join(error.message.split())
        if len(text) > ERROR_CHARACTERS:
            text = text[:ERROR_CHARACTERS] + "…"
        message = f"{self} is dead ({letter.reason}): {error.type}: {text}"
        return JobFailed(message, self.id, letter.reason, error.type, error.message, error.traceback)

    def __str__(self) -> str:
        task = f" of task {self.task!r}" if self.task else ""
        queue = f" in queue {self.queue!r}" if self.queue else ""
        return f"job {self.id!r}{task}{queue}"

    def __repr__(self) -> str:
        return f"<{self}>"
