"""The ordered topic of the suite: what its workers run, and who writes down what they did."""

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
from millstream.address import group_address, shard_of
from millstream.errors import LeaseLost
from millstream.ordering import OnFailure

RULES = "CHAOS_ORDER"
"""An environment variable: the Rules, as JSON."""

TOPIC, GROUP = "parcels", "carriers"
ADDRESS = group_address(TOPIC, GROUP)

HANDLINGS, MENDED = "handlings", "mended"
"""Files in the ledger's folder: what handlers did; and, once it is there, what was doomed goes well."""

RETRY = RetryPolicy(4, delay=0.05, backoff="fixed")


class Rules(msgspec.Struct, frozen=True):
    """What holds for the topic and its handler."""

    shards: int = 8
    on_failure: OnFailure = "skip"
    failing: float = 0.0
    """How often an attempt fails, by chance."""
    seed: int = 1
    asks: bool = False
    """The handler waits until its outcome is on the server, and writes down what it was told."""


class Parcel(msgspec.Struct, frozen=True):
    """An event."""

    event: str
    key: str
    seconds: float
    """How long its handler takes."""
    doom: Literal["", "rejected", "exhausted"] = ""
    """How it dies."""


class HandlingLine(NamedTuple):
    """What a handler writes: when it begins, when it ends, and what became of its outcome."""

    what: Literal["start", "settled", "refused"] | How
    event: str
    key: str
    pid: int
    attempt: int
    began: float
    at: float
    shard: int
    epoch: int
    seated: bool


@cache
def _pen() -> Pen:
    return Pen(Path(os.environ[LEDGER]) / HANDLINGS)


@contextmanager
def _entry(parcel: Parcel) -> Iterator[HandlingLine]:
    job, began = current_job(), time.monotonic()
    lane = job._lane
    shard, seated = shard_of(lane.queue) or 0, lane.seats is not None
    line = HandlingLine(
        "start", parcel.event, parcel.key, os.getpid(), job.attempt, began, began, shard, lane.epoch, seated
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
    """What came of each start."""
    found: dict[tuple[str, int, float], Handling] = {}
    for line in lines:
        mark = line.event, line.pid, line.began
        if line.what == "start":
            found[mark] = Handling(
                line.event, line.key, line.pid, line.attempt, line.began, shard=line.shard, epoch=line.epoch, seated=line.seated
            )
        elif line.what == "settled" or line.what == "refused":
            found[mark] = found[mark]._replace(settled=line.what == "settled")
        else:
            found[mark] = found[mark]._replace(ended=line.at, how=line.what)
    return sorted(found.values(), key=lambda handling: handling.began)


def make_app(rules: Rules, **settings: Any) -> Millstream:
    """An app with the topic and its handler."""
    app = Millstream(**settings)
    topic = app.topic(TOPIC, Parcel, order_by=lambda parcel: parcel.key, shards=rules.shards)

    @topic.subscribe(GROUP, on_failure=rules.on_failure, retry=RETRY, max_crashes=100)
    async def carry(parcel: Parcel, delivery: Delivery) -> None:
        with _entry(parcel) as line:
            await asyncio.sleep(parcel.seconds)
            if parcel.doom and not (Path(os.environ[LEDGER]) / MENDED).exists():
                raise Reject("doomed") if parcel.doom == "rejected" else Flake(parcel.event)
            if random.Random(f"{rules.seed}/{parcel.event}/{delivery.attempt}").random() < rules.failing:
                raise Flake(parcel.event)
        if rules.asks:
            delivery.ack()
            try:
                await delivery.settled()
            except (LeaseLost, asyncio.CancelledError):
                _pen().write(line._replace(what="refused"))
                raise
            _pen().write(line._replace(what="settled"))

    return app


app = make_app(
    msgspec.json.decode(os.environ.get(RULES, "{}"), type=Rules),
    **json.loads(os.environ.get(SETTINGS, "{}")),
)
