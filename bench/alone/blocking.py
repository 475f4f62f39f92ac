"""Whether a key whose event is retried, with blocked events behind it, delays the other keys of its shard."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator

from alone.limit import Figures, Limit, Measurement
from alone.orders import ADDRESS, RETRY_SECONDS, TOPIC, Order, make_app
from alone.stage import PATIENCE, Stage
from contest.server import throwaway_server
from millstream import Millstream
from millstream.bench.figures import RowFailed, percentile

KEYS = 50
# events of the other keys per second
RATE = 250
# seconds per phase, and phases per kind; the kinds alternate
SECONDS = 3.0
PHASES = 5
# events of the retried key: published before it begins to fail, and while it fails
BEFORE, MEANWHILE = 200, 100

OTHERS = int(RATE * SECONDS)
EVENTS = 2 * PHASES * OTHERS + PHASES * (BEFORE + MEANWHILE)
WARM_UP = 500


class _Phases:
    """Publishes the events of all phases and records when."""

    def __init__(self, app: Millstream) -> None:
        self._app = app
        self._topic = app.topics[TOPIC]
        self._numbers: Iterator[int] = iter(range(EVENTS + WARM_UP))
        self.sent: defaultdict[str, dict[int, float]] = defaultdict(dict)
        """Per kind of phase: when each event of the other keys was published."""
        self.retries = 0

    async def run(self) -> None:
        await self._topic.publish_many([Order(next(self._numbers), f"k{i % KEYS}") for i in range(WARM_UP)])
        await self._drained()
        for _ in range(PHASES):
            for kind in ("undisturbed", "disturbed"):
                await self._phase(kind)
                await self._drained()

    async def _phase(self, kind: str) -> None:
        began, publishing = time.time() + 0.1, set[asyncio.Task[object]]()
        if kind == "disturbed":
            failing = Order(next(self._numbers), "retried", began + SECONDS)
            behind = [Order(next(self._numbers), "retried") for _ in range(BEFORE - 1)]
            await self._topic.publish_many([failing, *behind])
        every = OTHERS // MEANWHILE
        for i in range(OTHERS):
            await asyncio.sleep(max(0.0, began + i / RATE - time.time()))
            order = Order(next(self._numbers), f"k{i % KEYS}")
            self.sent[kind][order.number] = time.time()
            publishing.add(asyncio.ensure_future(self._topic.publish(order)))
            if kind == "disturbed" and i % every == 0 and i // every < MEANWHILE:
                publishing.add(asyncio.ensure_future(self._topic.publish(Order(next(self._numbers), "retried"))))
        await asyncio.gather(*publishing)
        if kind == "disturbed":
            state = await self._app.inspector.queue(ADDRESS)
            self.retries = state.totals["retried"]

    async def _drained(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                state = await self._app.inspector.queue(ADDRESS)
                if not state.ready + state.running + state.scheduled + state.blocked:
                    return
                await asyncio.sleep(0.05)


def measure() -> Figures:
    with (
        throwaway_server() as server,
        Stage(server, EVENTS + WARM_UP, make_app, "alone.orders") as stage,
        stage.workers() as workers,
    ):
        stage.until_served(workers)

        async def run(app: Millstream) -> _Phases:
            phases = _Phases(app)
            await phases.run()
            return phases

        phases: _Phases = stage.ask(run)
        workers.check()
        if wrong := stage.tally.wrong():
            raise RowFailed(f"not exact: {wrong}")
        starts = stage.starts()
    figures: dict[str, float] = {"retries": phases.retries / PHASES}
    for kind, sent in phases.sent.items():
        latencies = sorted(1_000 * (starts[number] - at) for number, at in sent.items())
        figures |= {kind: percentile(latencies, 99), f"{kind}_p50": percentile(latencies, 50)}
    return {"times": figures["disturbed"] / figures["undisturbed"], **figures}


BLOCKING = Measurement(
    name="blocking",
    measure=measure,
    limits=(Limit("p99 of the other keys of a shard while one of its keys retries, relative to undisturbed", "times", "×", 2),),
    how=f"An ordered topic with one shard and one worker with default settings. {RATE} events per second of {KEYS} keys are "
    f"published one at a time in phases of {SECONDS:g} s: {PHASES} undisturbed phases and {PHASES} disturbed ones, in turn. In "
    f"a disturbed phase an event of another key fails and is retried every {1000 * RETRY_SECONDS:g} ms ({{retries}} times), "
    f"while {BEFORE} events of its key wait behind it and {MEANWHILE} more arrive. Measured from before the publish call to "
    "the first line of the handler: p99 {undisturbed} ms undisturbed, {disturbed} ms disturbed; p50 {undisturbed_p50} and "
    "{disturbed_p50} ms.",
)
