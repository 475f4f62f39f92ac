"""A pair of backends, and their answers without the names that each backend chooses itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from millstream.backends.memory import MemoryBroker
from millstream.backends.redis import RedisBroker
from millstream.broker import Claim, Entry, JobView, Listed
from millstream.errors import LeaseLost, ShardsChanged, ShardsInUse
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter, decode_letter
from millstream.model.message import decode_message
from millstream.model.outcome import Kind, Outcome
from millstream.testing.backend import DEAD_ENDING, DONE_ENDING, LETTER, START, cause

LISTED: tuple[Listed, ...] = ("blocked", "scheduled", "ready", "running")

# how many steps back a choice goes: 0 is the latest
recent = st.integers(0, 5)
some = st.lists(st.integers(0, 9), min_size=1, max_size=5)
seconds = st.sampled_from([0.5, 1.0, 1.5, 2.0, 5.0, 12.0])
delays = st.sampled_from([0.0, 0.0, 0.0, 1.0, 5.0, 20.0])
leases = st.sampled_from([3.0, 10.0])
max_lengths = st.sampled_from([None, None, None, None, 3, 8])

BackendUnderTest = MemoryBroker | RedisBroker
MakeBackend = Callable[[], BackendUnderTest]
Verb = Callable[[BackendUnderTest, int], Coroutine[Any, Any, Any]]
"""A call to one backend. The number is its side, 0 or 1."""

LOST, CHANGED, IN_USE = "lease lost", "shards changed", "shards in use"
REFUSALS: dict[type[Exception], str] = {LeaseLost: LOST, ShardsChanged: CHANGED, ShardsInUse: IN_USE}


@dataclass(frozen=True)
class Claimed:
    """One delivery, with the entry of each backend."""

    consumer: str
    id: str
    entries: tuple[Entry, Entry]


@dataclass(frozen=True)
class Way:
    """The planned outcome of a delivery."""

    kind: Kind
    delay: float
    kept: bool

    def outcome(self, claimed: Claimed, side: int, given: bool, turn: int) -> Outcome:
        entry = claimed.entries[side]
        ending = {Kind.DONE: DONE_ENDING, Kind.DEAD: DEAD_ENDING}.get(self.kind)
        return Outcome(
            self.kind,
            entry.ref,
            claimed.id,
            result=ending if self.kept else None,
            result_ttl=1e6 if self.kept else 0.0,
            given_id=given,
            body=f"{claimed.id}#{turn}".encode(),
            delay=self.delay,
            expires_ms=entry.expires_ms,
            task="t" if self.kind is Kind.DEAD else "",
            letter=LETTER if self.kind is Kind.DEAD else None,
        )

    def in_bulk(self, given: bool) -> bool:
        """Return whether the outcome is settled in bulk. Such outcomes pass turns on before the others of their batch."""
        return self.kind is Kind.DONE and not self.kept and not given


ways = st.builds(Way, st.sampled_from(Kind), delays, st.booleans())


class Seen(NamedTuple):
    """A claim, without the names that each backend chooses itself."""

    entries: list[tuple[bytes | None, int, int]]
    now_ms: int
    next_due: float | None
    paused: bool
    suspects: bool


def seen(answer: Claim | str) -> Seen | str:
    if isinstance(answer, str):
        return answer
    return Seen(plain(answer.entries), answer.now_ms, answer.next_due, answer.paused, answer.suspects)


async def claim(backend: BackendUnderTest, queue: Address, consumer: str, count: int, **options: Any) -> Claim:
    """Claim until no more messages are available now. How many blocked messages one claim reads differs between backends."""
    found = await backend.claim(queue, consumer, count, **options)
    entries = found.entries
    while found.next_due == 0 and len(entries) < count:
        found = await backend.claim(queue, consumer, count - len(entries), **options)
        entries += found.entries
    return msgspec.structs.replace(found, entries=entries)


def plain(entries: Iterable[Entry]) -> list[tuple[bytes | None, int, int]]:
    return [(entry.body, entry.crashes, entry.expires_ms) for entry in entries]


def pairs(answers: tuple[Any, Any], consumer: str) -> list[Claimed]:
    """Pair the entries that both backends delivered to a consumer."""
    found = zip(answers[0].entries, answers[1].entries, strict=True)
    return [Claimed(consumer, (pair[0].body or b"").partition(b"#")[0].decode(), pair) for pair in found]


def seen_letter(dead: DeadLetter) -> tuple[Any, ...]:
    """Return the fields of a dead letter. The text of an OrderError is left out, because it differs between backends."""
    died_of = cause(dead)
    if died_of.error.type == "OrderError":
        died_of = msgspec.structs.replace(died_of, error=msgspec.structs.replace(died_of.error, message=""))
    return dead.id, dead.task, dead.queue, died_of, dead.died_at, dead.body, dead.key, dead.unhandled


def claimed_letters(entries: Iterable[Entry]) -> list[tuple[Any, ...]]:
    """Return claimed dead letters, without the names that each backend chooses itself."""
    messages = [(entry, decode_message(entry.body or b"")) for entry in entries]
    return [(seen_letter(decode_letter(message.args)), message.attempt, entry.crashes) for entry, message in messages]


async def listed(backend: BackendUnderTest, queue: Address, status: Listed) -> list[tuple[Any, ...]]:
    """Return all jobs in one state, read in pages, without the names that each backend chooses itself."""
    found: list[JobView] = []
    while page := await backend.inspector.jobs(queue, status, after=found[-1].cursor if found else "", limit=7):
        found += page
    return [(v.status, v.body, v.crashes, v.due_at, v.expires_at, v.consumer) for v in found]


class BackendPair(RuleBasedStateMachine):
    """Two backends that get the same calls. A subclass chooses them. ``walked`` counts the steps of all its runs."""

    make_backends: tuple[MakeBackend, MakeBackend]
    walked = 0

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.now = START
        self.backends = [make_backend() for make_backend in self.make_backends]
        for backend in self.backends:
            self.runner.run(self._open(backend))

    async def _open(self, backend: BackendUnderTest) -> None:
        await backend.open()
        backend.set_clock(self.now)

    def teardown(self) -> None:
        for backend in self.backends:
            self.runner.run(backend.close())
        self.runner.close()

    def both(self, verb: Verb) -> tuple[Any, Any]:
        """Return the answers of both backends. A refusal counts as an answer."""

        async def ask(backend: BackendUnderTest, side: int) -> Any:
            try:
                return await verb(backend, side)
            except tuple(REFUSALS) as error:
                return REFUSALS[type(error)]

        left, right = (self.runner.run(ask(backend, side)) for side, backend in enumerate(self.backends))
        return left, right

    def same(self, verb: Verb) -> Any:
        left, right = self.both(verb)
        assert left == right
        return left

    def pass_time(self, passed: float) -> None:
        self.now += passed
        for backend in self.backends:
            backend.set_clock(self.now)
