"""Dead letters with real workers: each dead letter is handled or moved, even if workers are killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.backends.redis.keys import queue_keys
from millstream.model.address import Address
from tests.system.apps import letters
from tests.system.harness import Ledger, Server, Worker, Workers, eventually

EVENTS = 600
LEASE = 1.5


@pytest.fixture(autouse=True)
def here(server: Server) -> Iterator[None]:
    with letters.app.override(server.url):
        yield


def serve(workers: Workers, group: str) -> Worker:
    worker = workers.launch("--queue", group, app="letters:app", lease=LEASE)
    eventually(lambda: "serves" in worker.log, "the worker to be ready")
    return worker


def test_a_dead_letter_is_handled_elsewhere_if_its_worker_is_killed(ledger: Ledger, workers: Workers, gate: Path) -> None:
    victim = serve(workers, "gates/fails")
    assert "serving 'gates/fails', the dead letters of 'gates/fails'; 1 process" in victim.log
    sent = letters.gates.publish_sync(str(gate), id="o-1")
    ledger.until_started(1, "letter-")
    assert [dead.id for dead in letters.app.dead.list_sync()] == [sent]
    victim.clean_up()  # SIGKILL to the supervisor and its child: only the lease reveals their death
    serve(workers, "gates/fails")
    ledger.until_started(2, "letter-")
    gate.touch()

    def gone() -> bool:
        return letters.app.inspector.queue_sync(Address("gates/fails").dead).totals["done"] == 1

    eventually(gone, "the dead letter to be handled")
    assert letters.app.dead.list_sync() == []
    assert [(line.key, line.crashes) for line in ledger.starts("letter-")] == [("letter-o-1", 0), ("letter-o-1", 1)]
    assert [line.crashes for line in ledger.ends("letter-")] == [1]


def test_a_dead_letter_waiting_for_a_retry_survives_the_kill_of_its_worker(
    server: Server, ledger: Ledger, workers: Workers, gate: Path
) -> None:
    group = Address("gates/tries")
    dead = group.dead

    def scheduled() -> int:
        return letters.app.inspector.queue_sync(dead).scheduled

    def let_an_hour_pass() -> None:
        due = queue_keys(letters.app.settings.namespace, dead)["due"]
        ((entry, _),) = server.call("ZRANGE", due, 0, -1, "WITHSCORES")
        server.call("ZADD", due, "XX", 1, entry)

    victim = serve(workers, group)
    sent = letters.gates.publish_sync(str(gate))
    eventually(lambda: scheduled() == 1, "the dead letter to wait for another attempt")
    victim.clean_up()  # SIGKILL to the supervisor and its child
    assert [letter.id for letter in letters.app.dead.list_sync()] == [sent]
    let_an_hour_pass()
    serve(workers, group)
    ledger.until_started(2, "try-")
    eventually(lambda: scheduled() == 1, "the dead letter to wait for its last attempt")
    gate.touch()
    let_an_hour_pass()
    eventually(lambda: not letters.app.dead.list_sync(), "the dead letter to be handled")
    assert [(line.attempt, line.crashes) for line in ledger.starts("try-")] == [(1, 0), (2, 0), (3, 0)]


def test_each_dead_letter_is_moved_once_although_workers_are_killed(ledger: Ledger, workers: Workers) -> None:
    movers = [serve(workers, "numbers/fails") for _ in range(2)]
    letters.numbers.publish_many_sync(range(EVENTS))
    for at, mover in enumerate(movers):

        def moved(least: int = (at + 1) * EVENTS // 4) -> bool:
            return letters.app.inspector.topic_sync("spoilt").totals["published"] >= least

        eventually(moved, "part of the dead letters to be moved")
        eventually(mover.children, "a child to kill")
        os.kill(mover.children()[0], signal.SIGKILL)
    serve(workers, "spoilt/all")

    def all_moved() -> bool:
        left = letters.app.inspector.queue_sync("numbers/fails")
        topic = letters.app.inspector.topic_sync("spoilt")
        return not (left.dead or left.ready or left.running) and topic.length == 0

    eventually(all_moved, "all dead letters to be moved and handled", 60)
    assert letters.app.inspector.topic_sync("spoilt").totals["published"] == EVENTS
    assert ledger.runs("spoilt-") == Counter({f"spoilt-{number}": 1 for number in range(EVENTS)})
