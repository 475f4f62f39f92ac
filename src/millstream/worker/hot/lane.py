"""A lane: everything that one worker process holds for one queue or group."""

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
"""Number of failed outcomes whose errors a lane remembers."""

LEAST_SHARE = 0.02
"""Lower bound for the share of a kind of slot, so that a kind that has tasks is never ruled out."""


class Count:
    """Counters that the lanes of all shards of an address have in common."""

    __slots__ = ("lanes", "supplied", "value")

    def __init__(self, lanes: int = 1) -> None:
        self.lanes = lanes
        self.value = 0
        """Number of running and buffered messages. Only maintained if the address has a limit."""
        self.supplied = 0
        """Number of lanes whose last claim brought messages."""


class Lane:
    """The state of one queue or group in one worker process. ``consumer`` is the name under which it holds its lease."""

    __slots__ = (
        "acks_first",
        "away",
        "batch",
        "being_settled",
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
        "suspected",
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
        """The address of a queue, of a group, or of a group's dead letters. Of a sharded address: one shard."""
        self.handler: Prepared | None = None if handles is None else prepare(handles)
        """Handler of all messages of this lane. None: each message names its task."""
        self.limit = None if handles is None else handles.concurrency
        """Maximum number of messages, or batches, that run at the same time. None: the slots are the only limit."""
        self.batch: Batch | None = None if handles is None else handles.batch
        self.gathered: list[InFlight] = []
        """Claimed messages that wait to become a batch."""
        self.count = count or Count()
        """Counters shared with the lanes of the other shards."""
        self.max_consumers = max_consumers
        """Maximum number of consumers over all workers, this lane included. None: no maximum."""
        self.order = order
        """Rules for messages that have an ordering key."""
        self.epoch = 0
        """Number of this lane's lease. A later join always gets a larger number."""
        self.leaving = False
        """The lane claims nothing more, and gives up its lease when its running jobs have ended."""
        self.stirred = asyncio.Event()
        """Set when the lane gets a lease, and when the worker stops."""
        self.acks_first = handles is not None and handles.ack == "on_receive"
        """Messages are settled as done before their handler is called, so each is handled at most once."""
        self.manual = handles is not None and handles.ack == "manual"
        """A delivery may stay open after its handler has ended, until it is acknowledged."""
        self.special = self.acks_first or self.manual
        """Jobs of this lane need more than a call of their handler (``acks_first`` or ``manual``)."""
        self.foreign: Callable[[bytes], bytes] | None = None if handles is None else handles.foreign
        """Converts the fields of another program's entry into a payload. None: such an entry is malformed."""
        self.runner: Runner
        """Runs the messages that are claimed here."""
        self.keeps_expired = handles is not None and handles.keep_expired
        """Expired messages become dead letters instead of only being counted."""
        self.letters: Letters = "" if handles is None else handles.letters
        """How claimed dead letters are processed. Empty if the messages of this lane are not dead letters."""
        self.broadcast = broadcast
        """The lane is a broadcast: it exists in every process, has no consumer, and settles nothing."""
        self.missed: dict[bytes, int] = {}
        """Number of events that a broadcast missed just before an event, by the ref of that event."""
        self.lost: dict[bytes, BrokerError] = {}
        """Why the latest failed outcomes did not reach the server, by ref."""
        self.watched: dict[bytes, asyncio.Future[None]] = {}
        """Futures that are resolved when an outcome is on the server, by ref."""
        self.consumer = ""
        self.doubtful = False
        """Some claimed messages were dropped before they started, because another worker may have taken them over."""
        self.kinds = kinds
        """The kinds of slots that this queue's tasks need."""
        self.buffered = buffered
        """False: a task of this queue runs at most once, so a message may only be claimed if it can start immediately."""
        self.suspect_after = suspect_after
        self.unknown = 0
        """Number of messages of the last claim whose tasks this worker does not know."""
        self.shares = list(EVEN)
        """The part of recently claimed messages that needed each kind of slot."""
        self.state: Any = None
        """The value that the app's lifespan yielded."""
        self.outcomes: list[Outcome] = []
        self.being_settled = False
        """The settler works on this lane."""
        self.away = False
        """The settler could not reach the server at its last attempt."""
        self.settling: list[Outcome] = []
        """The batch that is being settled now."""
        self.suspected = 0
        """Number of outcomes that are settled one by one, because the server rejected them as a batch."""
        self.settling_as = ""
        """The consumer that claimed the batch. After a lost lease ``consumer`` is another one, which must not settle it."""
        self.handed_back: list[bytes] = []
        """Messages to release: interrupted by a shutdown, or not allowed to wait in the buffer."""
        self.releasing: set[bytes] = set()
        """Messages that are being released now."""

    @property
    def active(self) -> int:
        return self.count.value

    @active.setter
    def active(self, value: int) -> None:
        self.count.value = value

    @property
    def claims(self) -> bool:
        """Whether the lane may claim now."""
        return bool(self.consumer) and not self.leaving

    def unwatch(self, error: BrokerError, refs: Iterable[bytes] | None = None) -> None:
        """Fail the futures of these outcomes, or of all, because the outcomes will not reach the server. The error is kept for
        later callers."""
        for ref in list(self.watched if refs is None else refs):
            self.lost[ref] = error
            if len(self.lost) > LOST_KEPT:
                del self.lost[next(iter(self.lost))]
            future = self.watched.pop(ref, None)
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # mark as retrieved, so that asyncio logs nothing if no code awaits the future

    def describe(self, message: Message) -> str:
        """Describe a message of this lane, for the log."""
        if self.handler is None:
            return f"job {message.id} (task {message.task!r})"
        if self.letters:
            return f"the handler of dead letter {message.id} ({str(self.queue.owner)!r})"
        return f"event {message.id} ({self.queue.spoken})"

    def describe_end(self, message: Message, reason: str) -> str:
        """Describe how a message that is not retried ends. In the log, this follows ``describe``."""
        if not self.letters:
            return f"is dead, {reason}"
        show = f"millstream dead show {shlex.quote(message.id)} --queue {shlex.quote(self.queue.owner.base)}"
        return f"gave up, {reason}; the dead letter stays stored, marked as unhandled ({show})"

    def note(self, threads: int, count: int) -> None:
        """Update the shares after a claim of ``count`` messages, of which ``threads`` need a thread. A share rises immediately
        and falls gradually."""
        for kind, share in ((THREAD, threads / count), (ASYNC, 1 - threads / count)):
            self.shares[kind] = max(LEAST_SHARE, share, (7 * self.shares[kind] + share) / 8)
