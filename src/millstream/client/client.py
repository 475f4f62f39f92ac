"""A client: one broker on one event loop, and the operations that apps, tasks and jobs need."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from millstream.aio.backoff import pauses
from millstream.aio.shared_attempt import SharedAttempt
from millstream.broker import Broker
from millstream.client.opening import Opening, PrefixDeclaration, TopicDeclaration
from millstream.client.outbox import PATIENCE_SECONDS
from millstream.client.publisher import Publisher
from millstream.client.template import Template
from millstream.errors import BrokerError, BrokerUnavailable
from millstream.model.address import Address
from millstream.model.settings import QueueSettings
from millstream.model.types import Status
from millstream.reporting import logs
from millstream.reporting.observers import Observers
from millstream.reporting.reporter import Reporter

log = logs.logger("millstream")

T = TypeVar("T")

SENDER_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
SENDER_LENGTH = 11
"""57 random bits: with a million clients of a queue per day, a collision happens once in 260,000 days. Short, because each job
stores its id twice."""


AT_ONCE = 200
"""Number of queues searched for a job at the same time."""


class Backend(Protocol):
    """The place where an app's queues are stored."""

    @property
    def where(self) -> str:
        """Description for messages. Contains no password."""
        ...

    async def connect(self) -> Broker:
        """Return an open broker for the running loop. Raises what ``Broker.open`` raises."""
        ...


def new_sender() -> str:
    """Return a new unique sender id."""
    return "".join(secrets.choice(SENDER_ALPHABET) for _ in range(SENDER_LENGTH))


class Client:
    """A client of the running event loop. It connects at first use and closes with the loop, also under ``asyncio.run``."""

    def __init__(
        self,
        backend: Backend,
        queues: Mapping[str, QueueSettings],
        topics: Mapping[str, TopicDeclaration],
        prefixes: Mapping[Address, PrefixDeclaration],
        observers: Observers | None = None,
        *,
        clock: Callable[[], float] = time.time,
        new_sender: Callable[[], str] = new_sender,
    ) -> None:
        self.entered = 0
        """Number of open ``async with`` blocks."""
        self.loop = asyncio.get_running_loop()
        self.reporter = Reporter(observers, log)
        self._backend = backend
        self._queues = queues
        self._topics = topics
        self.opening = Opening(queues, topics, prefixes)
        self._clock = clock
        self._new_sender = new_sender
        self._broker: Broker | None = None
        self._connecting = SharedAttempt(self._connect, self._why_closed)
        self._failed: BrokerUnavailable | None = None
        """Error of the last attempt to connect, or ``None`` if it succeeded."""
        self._publishers: dict[Address, Publisher] = {}
        self._until_shutdown: AsyncGenerator[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._explained: dict[tuple[str, str], float] = {}
        """Loop time of the last explanation, by queue and task."""
        self._closed = False
        """No new connection is made. Calls still in flight fail instead of leaving a connection behind."""

    @property
    def where(self) -> str:
        """Description of the server for messages. Contains no password."""
        return self._backend.where

    async def broker(self) -> Broker:
        """Return the broker, connected."""
        return self._broker or await self._connecting.run()

    async def _connect(self) -> Broker:
        if self._broker is not None:  # connected since the caller checked
            return self._broker
        if self._closed:
            raise BrokerUnavailable(self._why_closed())
        try:
            broker = await self._open()
        except BrokerUnavailable as error:
            self._failed = error
            raise
        self._broker, self._failed = broker, None
        # When the loop shuts down it closes all its async generators. This one closes the connections.
        self._until_shutdown = self._close_at_shutdown()
        await anext(self._until_shutdown)
        return broker

    async def _open(self) -> Broker:
        broker = await self._backend.connect()
        broker.repaired = self._repaired
        self.opening.restart()
        try:
            await self.opening.declarations(broker)
        except BaseException:
            await broker.close()
            raise
        return broker

    async def open_declared(self, addresses: Sequence[Address]) -> Broker:
        """Return the broker after opening all topics, groups and prefixes declared so far, for a worker of these addresses.

        Raises ShardsChanged if one of the addresses has a different number of shards than declared.
        """
        broker = await self.broker()
        await self.opening.to_serve(broker, addresses)
        return broker

    def _repaired(self, address: Address, what: str) -> None:
        self.reporter.tell("maintenance", address, BrokerError(what))

    async def ask(self, verb: Callable[[Broker], Awaitable[T]]) -> T:
        """Call ``verb`` with the broker. While the server is unreachable, retry for at most PATIENCE_SECONDS.

        The verb must be safe to send twice.
        """
        deadline = self.loop.time() + PATIENCE_SECONDS
        for pause in pauses():
            try:
                return await verb(self._broker or await self._broker_by(deadline))
            except BrokerUnavailable:
                if self._closed or self.loop.time() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("pauses() must not end")

    async def _broker_by(self, deadline: float) -> Broker:
        """Return the connected broker, or raise BrokerUnavailable at the deadline, a loop time. The connection attempt
        continues for callers with a later deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self.broker()
        except TimeoutError:
            raise BrokerUnavailable(self.why_silent(PATIENCE_SECONDS)) from self._failed

    def why_silent(self, seconds: float) -> str:
        """Return the text of an error for a call without an answer: where the server is, and what this client knows about the
        cause."""
        where = self._backend.where
        if self._broker is not None:
            return (
                f"{where} did not answer within {seconds:g} s. Check that the server is running and not overloaded, and that "
                "the network delivers its answers"
            )
        if self._failed is not None:
            return f"no connection to {where} within {seconds:g} s. The last attempt failed: {self._failed}"
        return (
            f"no connection to {where} within {seconds:g} s: the first attempt has not ended. Check that the server is up, "
            "that the address is right, and that no firewall drops packets"
        )

    def _why_closed(self) -> str:
        return (
            f"the connection to {self._backend.where} was closed during a call, because its app was closed, garbage-collected "
            "or overridden"
        )

    # -- sending -----------------------------------------------------------------------------------------------------------

    async def send(self, template: Template, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, bool, Address]:
        """Enqueue one job. Return its id, whether this call created it, and its address. An error affects only this job."""
        payload = template.pack(args, kwargs)
        publisher = self._publishers.get(template.queue) or self.publisher(template.queue)
        key, outbox = publisher.choose(template, args, kwargs)
        post = template.post(payload, outbox, self.now_ms(), key)
        answer = await outbox.send(post)
        if isinstance(answer, Exception):
            raise answer
        return post.id, publisher.created(outbox.address, post, answer[0]), outbox.address

    def publisher(self, address: Address) -> Publisher:
        """Return this client's publisher for the address of a queue or topic."""
        publisher = self._publishers.get(address)
        if publisher is None:
            publisher = Publisher(address, self._queues, self._topics, self.opening, self, self._new_sender)
            self._publishers[address] = publisher
        return publisher

    def now_ms(self) -> int:
        """Return the wall clock of this machine in epoch milliseconds. For display only."""
        return int(self._clock() * 1000)

    # -- finding -----------------------------------------------------------------------------------------------------------

    async def addresses(self, address: Address) -> list[Address]:
        """Return where the messages of a queue or group are: its own address, or the addresses of its shards on the server."""

        async def look(broker: Broker) -> list[Address]:
            await self.opening.note(broker, address.sharded)
            if address.shard is not None:
                return [address]
            return address.shards(await broker.inspector.shards(address.sharded))

        return await self.ask(look)

    async def find_job(self, addresses: Sequence[Address], job_id: str) -> Address | None:
        """Return which of these addresses knows a job, or ``None``."""
        statuses = await asyncio.gather(*(self.ask(partial(_status, address, job_id)) for address in addresses))
        return next((address for address, status in zip(addresses, statuses, strict=True) if status != "unknown"), None)

    async def find_everywhere(self, job_id: str) -> list[Address]:
        """Return the addresses of all queues or shards in the namespace that know a job."""
        names = await self.ask(lambda broker: broker.inspector.queues())
        found: list[Address] = []
        for start in range(0, len(names), AT_ONCE):
            spreads = await asyncio.gather(*(self.addresses(Address(name)) for name in names[start : start + AT_ONCE]))
            known = await asyncio.gather(*(self.find_job(addresses, job_id) for addresses in spreads))
            found += [address for address in known if address is not None]
        return found

    async def of_all(self, address: Address, verb: Callable[[Address, Broker], Awaitable[T]]) -> list[T]:
        """Call ``verb`` for a queue or group, or concurrently for each of its shards. Return the answers in shard order."""
        return await asyncio.gather(*(self.ask(partial(verb, each)) for each in await self.addresses(address)))

    # -- closing -----------------------------------------------------------------------------------------------------------

    def in_background(self, verb: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run something that no caller waits for."""
        task = self.loop.create_task(verb())
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def may_explain(self, queue: str, task: str, seconds: float) -> bool:
        """Return whether to find out why a job waits: at most once per ``seconds`` for a task, because it takes several
        calls."""
        now = self.loop.time()
        if now < self._explained.get((queue, task), -math.inf) + seconds:
            return False
        self._explained[queue, task] = now
        return True

    async def close(self) -> None:
        """Wait for sends in progress, then close every connection permanently. Idempotent."""
        await self._flush()
        self._closed = True
        await self._disconnect()

    async def _flush(self) -> None:
        for publisher in list(self._publishers.values()):
            await publisher.flush()

    async def _disconnect(self) -> None:
        for task in self._beside:
            task.cancel()
        await self._connecting.cancel()
        self.entered = 0
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.close()
        if self._until_shutdown is not None:
            guard, self._until_shutdown = self._until_shutdown, None
            await guard.aclose()

    def never_left(self) -> None:
        """Report that the app was entered and never left, and that its loop or the app itself no longer exists."""
        error = ResourceWarning("an app was entered (`async with app`) and never left")
        self.reporter.tell("unclosed", None, error)

    def close_soon(self) -> None:
        """Close soon. Callable from any thread and from a finalizer."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._begin_to_close)

    def _begin_to_close(self) -> None:
        if self._broker is not None or self._connecting.in_progress or self._publishers:
            self._closing = self.loop.create_task(self.close())
        else:
            self._closed = True

    async def _close_at_shutdown(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._until_shutdown = None
            await self._flush()
            await self._disconnect()  # not permanently: the loop may run again


def _status(address: Address, job_id: str, broker: Broker) -> Awaitable[Status]:
    return broker.inspector.status(address, job_id)
