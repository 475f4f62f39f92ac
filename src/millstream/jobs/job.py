"""Job handles: read a job's result and status, or cancel it."""

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
from millstream.options import DEFAULT_QUEUE
from millstream.reporting import logs

log = logs.logger("millstream")

R_co = TypeVar("R_co", covariant=True)

ERROR_CHARACTERS = 200
"""Characters of the error in the message of ``JobFailed``. Its ``error`` has the full text."""

LONG_WAIT_SECONDS = 5.0
"""After this time, ``result()`` logs a warning if something holds the job up."""

HELD_UP = frozenset(("read_only", "full", "paused", "no_worker", "unknown_task", "stopped_key"))
"""Reasons to wait that do not go away by themselves."""

LAST_LOOK_SECONDS = 1.0
"""How long ``result()`` may take after its timeout to find out why the job has not ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The data that all jobs of one task with the same options share."""

    clients: Clients
    queue: str
    """Name of the queue. Empty if it is unknown: then every queue is searched."""
    task: str
    """Name of the task. Empty if it is unknown."""
    decode: Callable[[bytes | msgspec.Raw], Any]
    """Decodes a stored result. Raises ``InvalidResult`` if the result has another type."""
    keeps_results: bool
    address: Address | None = None
    """The shard that holds the jobs. ``None`` if the queue is not sharded, or if the shard is unknown."""
    looked_up: bool = False
    """Whether the job was looked up by its id, so that it may not exist."""


class Job(msgspec.Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """A handle of an enqueued job. It holds no connection and no state: every method asks the server."""

    # Not tracked by the garbage collector, because a bulk call creates millions of jobs. This is safe: a job cannot be part of
    # a reference cycle.

    id: str
    """The job's id."""
    created: bool
    """Whether this enqueue created the job. ``False`` if a job with this id existed, and for a job that was looked up by its
    id."""
    _origin: Origin

    @property
    def queue(self) -> str:
        """The name of the queue, without a shard. Empty if the job was looked up by its id, without a queue."""
        return self._origin.queue

    @property
    def task(self) -> str:
        """The name of the task. Empty if the job was looked up by its id, without a task."""
        return self._origin.task

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """Wait until the job has ended and return its return value.

        Args:
            timeout: Seconds to wait. 0 does not wait; ``None`` waits without limit.

        Raises:
            JobFailed: The job is dead.
            JobCancelled: The job was cancelled before it started, or before a retry started.
            JobExpired: The job expired before it started, or before a retry started.
            ResultTimeout: The job did not end in time. The message and ``why`` say what it waits for.
            ResultsDisabled: No result is stored: ``result_ttl=0``, or the result has expired.
            JobNotFound: The job was looked up by its id, and no queue has it.
            ResultError: The stored result does not match the return annotation of the task.
            BrokerUnavailable: The server is unreachable, or the app was closed during the wait.
        """
        origin, job_id = self._origin, self.id
        patience = None if timeout is None else seconds(timeout, "timeout")
        if not origin.keeps_results:
            raise ResultsDisabled(f"{self} stores no result, because result_ttl=0: set a result_ttl to read results", job_id)
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
            raise JobCancelled(f"{self} was cancelled before it started, or before a retry started", job_id)
        if ending.status == "expired":
            raise JobExpired(
                f"{self} expired before it started, or before a retry started: add workers, or raise expires", job_id
            )
        try:
            value: R_co = origin.decode(ending.value)
        except InvalidResult as error:
            raise ResultError(f"{self}: {error}", job_id) from error
        return value

    async def status(self) -> Status:
        """Return the job's state, for example ``"ready"`` or ``"done"``.

        Returns ``"unknown"`` if the server stores nothing about the job, as after the end of a job with ``result_ttl=0``.
        """
        address = await self._find()
        if address is None:
            return "unknown"
        return await self._origin.clients.here().ask(lambda broker: broker.inspector.status(address, self.id))

    async def cancel(self) -> bool:
        """Cancel the job if it waits for its start or for a retry.

        Return ``True`` if the job was cancelled, ``False`` if it is running or has ended.

        Raises:
            JobNotFound: The job was looked up by its id, and no queue has it.
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
        """Return a snapshot of the job: its attempt, last error, due time, worker, and why it is not running.

        Raises:
            JobNotFound: No queue has the job. It may have ended with ``result_ttl=0``.
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
        """Return the address of the queue or shard that has the job, or ``None``. Raise ``UsageError`` if several queues have
        it.

        If only one address is possible, it is returned without asking the server.
        """
        origin = self._origin
        if origin.address is not None:
            return origin.address
        client = origin.clients.here()
        if not origin.queue:
            found = await client.find_everywhere(self.id)
            if len(found) > 1:
                names = ", ".join(repr(address.name) for address in found)
                raise UsageError(f"several queues have a job {self.id!r} ({names}): choose one with app.job(id, queue=…)")
            return found[0] if found else None
        queue = Address(origin.queue)
        if client.opening.declares(queue):
            addresses = client.publisher(queue).shards or [queue]
        else:
            addresses = await client.addresses(queue)
        return addresses[0] if len(addresses) == 1 else await client.find_job(addresses, self.id)

    async def _tell_what_holds_it_up(self) -> None:
        """Log a warning if the job waits for something that does not go away by itself.

        At most one job per task and queue does this, so that waiting for thousands of results logs one line.
        """
        clients = self._origin.clients
        if not clients.here().may_explain(self.queue, self.task, LONG_WAIT_SECONDS):
            return
        with contextlib.suppress(BrokerError):
            broker, address = await clients.here().broker(), await self._find()
            if address is not None:
                why = explain(await broker.inspector.facts(address, self.id))
                if HELD_UP.intersection((why.code, *why.also)):
                    log.warning("%s at %s has not ended after %g s: %s", self, clients.where, LONG_WAIT_SECONDS, why.text)

    async def _wait(self, client: Client) -> Ending | None:
        """Wait for the job's ending and return it. Raise ``ResultsDisabled`` or ``JobNotFound`` if the server
        stores nothing about the job.

        Return ``None`` to wait again: the job was dead without a stored ending, and has just been replayed.
        """
        address = await self._find()
        if address is None:
            raise self._left_nothing()
        payload = await client.ask(lambda broker: broker.results.wait(address, self.id, None))
        if payload is not None:
            return decode_ending(payload)
        return self._ending_in(await client.ask(lambda broker: broker.inspector.job(address, self.id)))

    async def _last_look(self, patience: float) -> Ending:
        """Return the ending if the job has just ended. Otherwise raise ``ResultTimeout``, or ``ResultsDisabled`` or
        ``JobNotFound`` if the server stores nothing about the job."""
        clients = self._origin.clients
        waited = f"{self} at {clients.where} did not end within {patience:g} s"
        try:
            async with asyncio.timeout(LAST_LOOK_SECONDS):
                broker = await clients.here().broker()
                address = await self._find()
                payload = None if address is None else await broker.results.get(address, self.id)
                if payload is not None:
                    return decode_ending(payload)
                facts = None if address is None else await broker.inspector.facts(address, self.id)
                # The job may have ended since that read. The view has its state and its ending at the same moment.
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
        """Return the ending, or ``None`` if the job has not ended. Raise ``JobFailed`` if it is dead, and
        ``ResultsDisabled`` or ``JobNotFound`` if the server stores nothing about it."""
        if view is None:
            raise self._left_nothing()
        if view.ending is None and view.letter is not None:
            raise self._failed(view.letter)
        return view.ending

    async def _refusal(self) -> Why | None:
        """Return why the server refuses writes, or ``None`` if it accepts them or cannot be asked."""
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(LAST_LOOK_SECONDS):
                broker = await self._origin.clients.here().broker()
                trouble = await broker.inspector.trouble(Address(self.queue or DEFAULT_QUEUE))
                return None if trouble is None else Why(code=trouble.code, text=trouble.text)
        return None

    def _left_nothing(self) -> ResultError:
        if self._origin.looked_up:
            return self._not_found()
        return ResultsDisabled(
            f"no result is stored for {self}: it was enqueued with result_ttl=0, its result has expired, or it never existed",
            self.id,
        )

    def _not_found(self) -> JobNotFound:
        where = self._origin.clients.where
        text = f"{self} was not found at {where}: it ended and its result is no longer stored, or it never existed"
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
