"""The outbox: what one client sends to one queue, gathered into few calls, in order, each answered on its own.

Hot: among a hundred concurrent callers an enqueue costs 5 to 8 µs of CPU here; one caller alone waits 120 to 180 µs for each,
the round trip (Valkey on a unix socket, a busy machine of two cores).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context

from millstream.backoff import pauses
from millstream.broker import Post, Receipt
from millstream.errors import BrokerUnavailable

PATIENCE_SECONDS = 5.0
"""A call that finds the server away is tried again for this long, then raises BrokerUnavailable."""

MAX_POSTS = 200
"""Messages per publish call, so that no call holds the server long."""

MAX_BYTES = 256 * 1024
"""Bytes of bodies per publish call; one larger message travels alone."""

Answer = list[Receipt] | Exception
Publish = Callable[[list[Post], str], Awaitable[list[Receipt]]]
"""Sends posts, in order, in the name of a sender."""


class Parcel:
    """Posts that travel in one call and are answered together."""

    __slots__ = ("answer", "posts", "since", "size")

    def __init__(self, posts: list[Post], size: int, since: float, answer: asyncio.Future[Answer]) -> None:
        self.posts = posts
        self.size = size
        self.since = since
        """Loop time at which it was put in the outbox."""
        self.answer = answer
        """An exception is a value here, so that one nobody waits for any more leaves no warning behind."""

    def reply(self, answer: Answer) -> None:
        """Tell whoever still waits."""
        if not self.answer.done():
            self.answer.set_result(answer)


class Outbox:
    """Numbers posts and sends them in order, one call in flight.

    What is put in during one turn of the loop, or while a call is in flight, leaves in one call. A call that finds the server
    away is sent again, with the same serials, which a broker recognises. A waiter that goes away takes nothing with it.
    """

    def __init__(self, queue: str, sender: str, publish: Publish) -> None:
        self.sender = sender
        """The incarnation: never used by another client or for another queue."""
        self.serial = 0
        """The last number given out; whoever takes one puts its post in before anyone else can take the next."""
        self._queue = queue
        self._publish = publish
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Parcel] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._away_since: float | None = None

    def put(self, posts: list[Post], size: int) -> asyncio.Future[Answer]:
        """Take posts of at most MAX_POSTS and, unless it is one, MAX_BYTES together; the future has their answer."""
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.append(Parcel(posts, size, self._loop.time(), answer))
        if self._pump is None or self._pump.done():
            # A task takes its first step on the next turn of the loop: what this turn still brings goes with it.
            self._pump = self._loop.create_task(self._run(), name=f"millstream-outbox-{self._queue}", context=Context())
        return answer

    async def flush(self) -> None:
        """Wait until everything put in so far has its answer."""
        if self._pump is not None:
            await asyncio.wait((self._pump,))

    async def _run(self) -> None:
        parcels: list[Parcel] = []
        try:
            while self._waiting:
                parcels = self._take()
                await self._send(parcels)
        except asyncio.CancelledError:
            # The loop is being shut down: nobody is left waiting for ever.
            for parcel in (*parcels, *self._waiting):
                parcel.reply(_unavailable(f"the event loop was shut down while sending to queue {self._queue!r}", parcel.posts))
            self._waiting.clear()
            raise

    def _take(self) -> list[Parcel]:
        waiting = self._waiting
        parcels = [waiting.popleft()]
        count, size = len(parcels[0].posts), parcels[0].size
        while waiting:
            count += len(waiting[0].posts)
            size += waiting[0].size
            if count > MAX_POSTS or size > MAX_BYTES:
                break
            parcels.append(waiting.popleft())
        return parcels

    async def _send(self, parcels: list[Parcel]) -> None:
        """Send until answered, refused, or out of patience, each parcel counting from when it was put in or the server went."""
        for pause in pauses():
            began = self._loop.time()
            away_since = began if self._away_since is None else self._away_since
            try:
                # The first one put in is the first to run out of patience.
                async with asyncio.timeout_at(_patient_until(parcels[0], away_since)):
                    receipts = await self._publish([post for parcel in parcels for post in parcel.posts], self.sender)
            except (BrokerUnavailable, TimeoutError) as error:
                self._away_since = away_since
                reason = str(error) or f"the server of queue {self._queue!r} did not answer within {PATIENCE_SECONDS:g} s"
                parcels = _give_up(parcels, away_since, self._loop.time() + pause, reason)
                if not parcels:
                    return
                await asyncio.sleep(pause)
            except Exception as error:
                self._away_since = None
                for parcel in parcels:
                    parcel.reply(error)
                return
            else:
                self._away_since = None
                start = 0
                for parcel in parcels:
                    end = start + len(parcel.posts)
                    parcel.reply(receipts[start:end])
                    start = end
                return


def _patient_until(parcel: Parcel, away_since: float) -> float:
    return max(parcel.since, away_since) + PATIENCE_SECONDS


def _give_up(parcels: list[Parcel], away_since: float, until: float, reason: str) -> list[Parcel]:
    """Answer those whose patience ends before ``until``; return the others."""
    patient: list[Parcel] = []
    for parcel in parcels:
        if _patient_until(parcel, away_since) > until:
            patient.append(parcel)
        else:
            parcel.reply(_unavailable(reason, parcel.posts))
    return patient


def _unavailable(reason: str, posts: Iterable[Post]) -> BrokerUnavailable:
    return BrokerUnavailable(reason, [post.id for post in posts])
