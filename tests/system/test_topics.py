"""Topics with real workers: each group handles each event as often as it should, even if workers are killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.system.apps import events
from tests.system.harness import Ledger, Server, Worker, Workers, eventually

EVENTS = int(os.environ.get("MILLSTREAM_EVENTS", "2000"))
WITHIN = 60.0 + EVENTS / 200


@pytest.fixture(autouse=True)
def here(server: Server) -> Iterator[None]:
    with events.app.override(server.url):
        yield


def serve(workers: Workers, group: str) -> Worker:
    worker = workers.launch("--queue", f"numbers/{group}", app="events:app")
    eventually(lambda: "serves" in worker.log, "the worker to be ready")
    return worker


def until_handled() -> None:
    def handled() -> bool:
        topic = events.app.inspector.topic_sync("numbers")
        left = sum((group.lag or 0) + group.ready + group.running + group.scheduled for group in topic.groups)
        done = [events.app.inspector.queue_sync(f"numbers/{name}").totals["done"] for name in ("easy", "picky")]
        return done == [EVENTS, EVENTS] and left == 0 and topic.length == 0

    eventually(handled, f"all {EVENTS} events to be handled by both groups and to leave the log", WITHIN)


def test_each_group_handles_each_event_and_the_log_is_empty_at_the_end(ledger: Ledger, workers: Workers) -> None:
    events.numbers.publish_many_sync(range(EVENTS))
    for group in ("picky", "easy"):
        serve(workers, group)
    until_handled()
    for group in ("picky", "easy"):
        assert ledger.runs(f"{group}-") == Counter({f"{group}-{number}": 1 for number in range(EVENTS)})
        assert {line.attempt for line in ledger.starts(f"{group}-")} == {2 if group == "picky" else 1}
    retried = {name: events.app.inspector.queue_sync(f"numbers/{name}").totals["retried"] for name in ("easy", "picky")}
    assert retried == {"easy": 0, "picky": EVENTS}


def test_no_event_is_lost_if_a_worker_of_each_group_is_killed(ledger: Ledger, workers: Workers) -> None:
    victims = [serve(workers, group) for group in ("picky", "easy")]
    events.numbers.publish_many_sync(range(EVENTS))
    for victim, group in zip(victims, ("picky", "easy"), strict=True):
        ledger.until_started(EVENTS // 10, f"{group}-")
        os.kill(victim.child, signal.SIGKILL)
    for group in ("picky", "easy"):
        serve(workers, group)
    until_handled()
    for group in ("picky", "easy"):
        runs = ledger.runs(f"{group}-")
        assert set(runs) == {f"{group}-{number}" for number in range(EVENTS)}
        twice = [line.key for line in ledger.starts(f"{group}-") if runs[line.key] > 1 and line.crashes]
        assert {key for key, count in runs.items() if count > 1} == set(twice)  # every second run follows a crash
