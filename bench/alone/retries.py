"""Whether events of one group that wait for a retry slow the other groups of the topic down."""

from __future__ import annotations

from statistics import mean

from alone.events import EASY, STUBBORN, TOPIC, make_app
from alone.limit import Figures, Limit, Measurement
from alone.stage import CHUNK, Stage
from contest.server import throwaway_server
from millstream import Millstream
from millstream.bench.drain import watch
from millstream.bench.figures import RowFailed
from millstream.model.address import Address
from millstream.model.message import decode_message
from millstream.model.outcome import Kind, Outcome

WAITING = 100_000
EVENTS = 300_000
# seconds until the retries are due: longer than the measurement
DELAY = 3_600.0
# entries per claim
BATCH = 200


async def _prepare(app: Millstream, kind: Kind) -> None:
    """Settle all events in one group with this outcome. The other group skips them."""
    await app.topics[TOPIC].publish_many(range(WAITING))
    await app.group(TOPIC, EASY).skip()
    broker, address = await app.broker(), Address.of_group(TOPIC, STUBBORN)
    await broker.join(address, "prepares", 60.0)
    while entries := (await broker.claim(address, "prepares", BATCH)).entries:
        bodies = [entry.body or b"" for entry in entries]
        ends = [
            Outcome(kind, entry.ref, decode_message(body).id, body=body, delay=DELAY)
            for entry, body in zip(entries, bodies, strict=True)
        ]
        await broker.settle(address, "prepares", ends)
    await broker.leave(address, "prepares")


async def _fill(app: Millstream) -> None:
    for start in range(0, EVENTS, CHUNK):
        await app.topics[TOPIC].publish_many(range(start, start + CHUNK))
    await app.group(TOPIC, STUBBORN).skip()


def _rate(kind: Kind) -> float:
    """Return the events per second of the other group."""
    with throwaway_server() as server, Stage(server, EVENTS, make_app, "alone.events") as stage:
        stage.ask(lambda app: _prepare(app, kind))
        stage.ask(_fill)
        waiting = stage.ask(lambda app: app.inspector.queue(Address.of_group(TOPIC, STUBBORN))).scheduled
        if waiting != (WAITING if kind is Kind.RETRY else 0):
            raise RowFailed(f"{waiting:,} events wait for a retry")
        with stage.workers("-c", "100") as workers:
            handled, seconds = watch(stage.tally, workers)
        if wrong := stage.tally.wrong():
            raise RowFailed(f"not exact: {wrong}")
    return handled / seconds


def measure() -> Figures:
    rates: dict[Kind, list[float]] = {}
    for kind in (Kind.DONE, Kind.RETRY, Kind.RETRY, Kind.DONE):  # this order spreads temporary load over both kinds
        rates.setdefault(kind, []).append(_rate(kind))
    without, beside = (mean(rates[kind]) for kind in (Kind.DONE, Kind.RETRY))
    return {"slower": 100 * (1 - beside / without), "without": without, "beside": beside}


RETRIES = Measurement(
    name="retries",
    measure=measure,
    limits=(Limit("Slowdown of a group beside a group with 100,000 events that wait for a retry", "slower", "%", 10),),
    how=f"A topic with two groups, and one worker for both. One group has settled {WAITING:,} events or scheduled them for a "
    f"retry in an hour. Then the other group handles {EVENTS:,} more, which the first group skips. Each variant runs twice, in "
    "turn: {without} events/s without retries, {beside} with retries.",
)
