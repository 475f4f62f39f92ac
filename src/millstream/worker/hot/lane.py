"""A lane: one queue as one worker process serves it."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from millstream.broker.values import OrderRules
from millstream.errors import BrokerError
from millstream.events.batch import Batch
from millstream.model.address import Address
from millstream.model.handler import GroupHandler, Letters
from millstream.model.message import Message
from millstream.model.outcome import Outcome
from millstream.worker.hot.hold import ASYNC, EVEN, THREAD
from millstream.worker.hot.in_flight import InFlight
from millstream.worker.hot.prepared import Prepared, prepare

if TYPE_CHECKING:
    from millstream.worker.hot.runner import Runner

LOST_KEPT = 1000
"""Of how many outcomes it is known why they did not reach the server."""

LEAST_SHARE = 0.02
"""A kind that has tasks is never counted out."""


class Count:
    """What the lanes of an address's shards have together."""

    __slots__ = ("lanes", "supplied", "value")

    def __init__(self, lanes: int = 1) -> None:
        self.lanes = lanes
        self.value = 0
        """How many run or wait, if there is a limit."""
        self.supplied = 0
        """How many of the lanes had something to claim when they last did."""


class Lane:
    """What is in flight for one queue. ``consumer`` is the worker's present incarnation."""

    __slots__ = (
        "acks_first",
        "batch",
        "broadcast",
        "buffered",
        "consumer",
        "count",
        "doubtful",
        "epoch",
        "foreign",
        "gathered",
        "handed_back",
        "handler",
        "keeps_expired",
        "kinds",
        "leaving",
        "letters",
        "limit",
        "lost",
        "manual",
        "max_consumers",
        "missed",
        "order",
        "outcomes",
        "queue",
        "releasing",
        "runner",
        "settling",
        "settling_as",
        "shares",
        "special",
        "state",
        "stirred",
        "suspect_after",
        "unknown",
        "watched",
    )

    def __init__(
        self,
        queue: Address,
        *,
        kinds: tuple[int, ...] = (ASYNC,),
        buffered: bool = True,
        suspect_after: int = 2,
        handles: GroupHandler | None = None,
        broadcast: bool = False,
        max_consumers: int | None = None,
        order: OrderRules | None = None,
        count: Count | None = None,
    ) -> None:
        self.queue = queue
        """Its address: a queue's name, a group's topic and name, or that of a group's dead letters."""
        self.handler: Prepared | None = None if handles is None else prepare(handles)
        """What handles all that comes; None: each message names its task."""
        self.limit = None if handles is None else handles.concurrency
        """How many of it, or how many batches, run at once; None: as many as there are slots."""
        self.batch: Batch | None = None if handles is None else handles.batch
        self.gathered: list[InFlight] = []
        """What will be the next batch."""
        self.count = count or Count()
        """How many run or wait here, if there is a limit, and more."""
        self.max_consumers = max_consumers
        """How many consumers there may be over all workers, of which this is one or waits to be; None: any number."""
        self.order = order
        """What holds for messages that have a key."""
        self.epoch = 0
        """Of the lease it has: whoever joins later has the larger number."""
        self.leaving = False
        """It claims nothing more, and gives its lease up when what runs has ended."""
        self.stirred = asyncio.Event()
        """Set when it has a lease, and when the worker stops."""
        self.acks_first = handles is not None and handles.ack == "on_receive"
        """Settled as done before a handler is called: at most once, whatever happens to it."""
        self.manual = handles is not None and handles.ack == "manual"
        """A handler's delivery may go on after it, until it is told how it ends."""
        self.special = self.acks_first or self.manual
        """A job here does not simply run and end."""
        self.foreign: Callable[[bytes], bytes] | None = None if handles is None else handles.foreign
        """Makes a payload of the fields of another program's entry; None: that is malformed here."""
        self.runner: Runner
        """Runs what is claimed here."""
        self.keeps_expired = handles is not None and handles.keep_expired
        """What has expired is dead, not only counted."""
        self.letters: Letters = "" if handles is None else handles.letters
        """What is done with what comes, if these are dead letters."""
        self.broadcast = broadcast
        """Every process has such a one: it has no consumer, and nothing of it is settled."""
        self.missed: dict[bytes, int] = {}
        """How many events a broadcast missed just before one, by ref."""
        self.lost: dict[bytes, BrokerError] = {}
        """Why the latest outcomes that are not on the server are not, by ref."""
        self.watched: dict[bytes, asyncio.Future[None]] = {}
        """Who waits for an outcome to be on the server, by ref."""
        self.consumer = ""
        self.doubtful = False
        """Something was not begun here because others may have taken it over."""
        self.kinds = kinds
        """Which kinds of slots this queue's tasks need."""
        self.buffered = buffered
        """False: a task here runs at most once, so nothing may be claimed that cannot start at once."""
        self.suspect_after = suspect_after
        self.unknown = 0
        """How many of the last claim are of tasks that this worker does not know."""
        self.shares = list(EVEN)
        """What part of what came lately was of each kind."""
        self.state: Any = None
        """What the app's lifespan yielded."""
        self.outcomes: list[Outcome] = []
        self.settling: list[Outcome] = []
        """The batch that is being settled now."""
        self.settling_as = ""
        """The consumer under whose name that batch is settled: those who come after it did not claim it."""
        self.handed_back: list[bytes] = []
        """To be released: stopped by a shutdown, or may not wait here."""
        self.releasing: set[bytes] = set()
        """Being released now."""

    @property
    def active(self) -> int:
        return self.count.value

    @active.setter
    def active(self, value: int) -> None:
        self.count.value = value

    @property
    def claims(self) -> bool:
        """Whether it may claim now."""
        return bool(self.consumer) and not self.leaving

    def unwatch(self, error: BrokerError, refs: Iterable[bytes] | None = None) -> None:
        """Tell those who wait for these outcomes, or for any, that they will not be on the server; those who ask later, too."""
        for ref in list(self.watched if refs is None else refs):
            self.lost[ref] = error
            if len(self.lost) > LOST_KEPT:
                del self.lost[next(iter(self.lost))]
            future = self.watched.pop(ref, None)
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # if nobody waits any more, that is not worth a line

    def describe(self, message: Message) -> str:
        """A message that came here, for the log."""
        if self.handler is None:
            return f"job {message.id} (task {message.task!r})"
        if self.letters:
            return f"the handler of dead letter {message.id} ({str(self.queue.owner)!r})"
        return f"event {message.id} ({self.queue.spoken})"

    def describe_end(self, message: Message, reason: str) -> str:
        """What becomes of a message that is tried no more, for the log, behind ``describe``."""
        if not self.letters:
            return f"is dead, {reason}"
        show = f"millstream dead show {shlex.quote(message.id)} --queue {shlex.quote(self.queue.owner.base)}"
        return f"gives up, {reason}, and the letter stays in the list, marked unhandled ({show})"

    def note(self, threads: int, count: int) -> None:
        """Of ``count`` that came, so many need threads. A larger share is believed at once, a smaller one by and by."""
        for kind, share in ((THREAD, threads / count), (ASYNC, 1 - threads / count)):
            self.shares[kind] = max(LEAST_SHARE, share, (7 * self.shares[kind] + share) / 8)
