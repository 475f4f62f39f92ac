"""The ordered topic and the ordered task of the suite: the app of their workers, and the record of what handlers did."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from chaos.app import LEDGER, SETTINGS
from chaos.history import How
from chaos.ledger import Flake, Pen
from chaos.order import Handling
from millstream import Delivery, Millstream, Reject, RetryPolicy, current_job
from millstream.errors import LeaseLost
from millstream.jobs.current import in_flight
from millstream.model.address import Address
from millstream.model.ordering import OnFailure

RULES = "CHAOS_ORDER"
"""Environment variable: the Rules, as JSON."""

TOPIC, GROUP, QUEUE, TASK = "parcels", "carriers", Address("errands"), "errand"

Ordered = Literal["topic", "task"]
"""What is ordered: a topic and its group, or a task and its queue."""

HANDLINGS, MENDED = "handlings", "mended"
"""Files in the ledger's folder: what handlers did, and a marker. Once the marker exists, doomed events succeed."""

RETRY = RetryPolicy(4, delay=0.05, backoff="fixed")


class Rules(msgspec.Struct, frozen=True):
    """Settings of the topic or task and its handler."""

    of: Ordered = "topic"
    shards: int = 8
    """Number of shards; 0: the queue of the task is not sharded."""
    on_failure: OnFailure = "skip"
    failing: float = 0.0
    """Probability that an attempt fails."""
    seed: int = 1
    asks: bool = False
    """The handler waits until its outcome is on the server, and records whether the server accepted it. Topics only."""

    @property
    def address(self) -> Address:
        """The address that workers claim from."""
        return Address.of_group(TOPIC, GROUP) if self.of == "topic" else QUEUE


class Parcel(msgspec.Struct, frozen=True):
    """An event, or the argument of a job."""

    event: str
    key: str
    seconds: float
    """Duration of its handler."""
    doom: Literal["", "rejected", "exhausted"] = ""
    """How the event dies."""


class HandlingLine(NamedTuple):
    """One line that a handler writes: at its start, at its end, and when its outcome is accepted or refused."""

    what: Literal["start", "settled", "refused"] | How
    event: str
    key: str
    pid: int
    attempt: int
    began: float
    at: float
    shard: int
    epoch: int
    owning: bool


@cache
def _pen() -> Pen:
    return Pen(Path(os.environ[LEDGER]) / HANDLINGS)


@contextmanager
def _entry(parcel: Parcel) -> Iterator[HandlingLine]:
    job, began = in_flight(), time.monotonic()
    lane = job.lane
    shard, owning = lane.queue.shard or 0, lane.max_consumers is not None
    line = HandlingLine(
        "start", parcel.event, parcel.key, os.getpid(), job.message.attempt, began, began, shard, lane.epoch, owning
    )  # fmt: skip
    _pen().write(line)
    how: How = "broken"
    try:
        yield line
        how = "end"
    except (Flake, Reject):
        how = "failed"
        raise
    finally:
        _pen().write(line._replace(what=how, at=time.monotonic()))


def handlings_of(lines: Iterable[HandlingLine]) -> list[Handling]:
    """Return one Handling per start."""
    found: dict[tuple[str, int, float], Handling] = {}
    for line in lines:
        mark = line.event, line.pid, line.began
        if line.what == "start":
            found[mark] = Handling(
                line.event, line.key, line.pid, line.attempt, line.began, shard=line.shard, epoch=line.epoch, owning=line.owning
            )
        elif line.what == "settled" or line.what == "refused":
            found[mark] = found[mark]._replace(settled=line.what == "settled")
        else:
            found[mark] = found[mark]._replace(ended=line.at, how=line.what)
    return sorted(found.values(), key=lambda handling: handling.began)


def make_app(rules: Rules, **settings: Any) -> Millstream:
    """Return an app with the topic or task and its handler."""
    app = Millstream(**settings)
    if rules.of == "task":
        _add_task(app, rules)
    else:
        _add_topic(app, rules)
    return app


def _add_topic(app: Millstream, rules: Rules) -> None:
    topic = app.topic(TOPIC, Parcel, order_by=lambda parcel: parcel.key, shards=rules.shards)

    @topic.subscribe(GROUP, on_failure=rules.on_failure, retry=RETRY, max_crashes=100)
    async def carry(parcel: Parcel, delivery: Delivery) -> None:
        with _entry(parcel) as line:
            await _handle(parcel, rules)
        if rules.asks:
            delivery.ack()
            try:
                await delivery.settled()
            except (LeaseLost, asyncio.CancelledError):
                _pen().write(line._replace(what="refused"))
                raise
            _pen().write(line._replace(what="settled"))


def _add_task(app: Millstream, rules: Rules) -> None:
    app.queue(QUEUE, shards=rules.shards or None)

    @app.task(name=TASK, queue=QUEUE, order_by=_key_of, on_failure=rules.on_failure, retry=RETRY, max_crashes=100)
    async def errand(parcel: Parcel) -> None:
        with _entry(parcel):
            await _handle(parcel, rules)


def _key_of(parcel: Parcel) -> str:
    return parcel.key


async def _handle(parcel: Parcel, rules: Rules) -> None:
    await asyncio.sleep(parcel.seconds)
    if parcel.doom and not (Path(os.environ[LEDGER]) / MENDED).exists():
        raise Reject("doomed") if parcel.doom == "rejected" else Flake(parcel.event)
    if random.Random(f"{rules.seed}/{parcel.event}/{current_job().attempt}").random() < rules.failing:
        raise Flake(parcel.event)


app = make_app(
    msgspec.json.decode(os.environ.get(RULES, "{}"), type=Rules),
    **json.loads(os.environ.get(SETTINGS, "{}")),
)
