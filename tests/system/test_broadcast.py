"""Broadcasts with real workers: every process receives every event, or learns how many it missed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.apps import broadcasts
from tests.system.harness import Ledger, Server, Worker, Workers, eventually

EVENTS = 500


@pytest.fixture(autouse=True)
def here(server: Server) -> Iterator[None]:
    with broadcasts.app.override(server.url):
        yield


def serve(workers: Workers, *arguments: str, processes: int = 1) -> Worker:
    worker = workers.launch(*arguments, "--processes", str(processes), app="broadcasts:app")
    eventually(lambda: worker.log.count(" serves ") == processes, "the processes to be ready")
    return worker


def given(ledger: Ledger) -> dict[int, list[str]]:
    """Return what each process received: each event, and how many events it missed before that event."""
    found: dict[int, list[str]] = {}
    for line in ledger.ends():
        found.setdefault(line.pid, []).append(line.key)
    return found


def test_every_process_receives_every_event_once_in_order(ledger: Ledger, workers: Workers) -> None:
    broadcasts.prices.publish_sync(-1)
    worker = serve(workers, processes=2)
    broadcasts.prices.publish_many_sync(range(EVENTS))
    ledger.until_ended(2 * EVENTS)
    assert sorted(given(ledger)) == worker.children()
    assert list(given(ledger).values()) == [[f"{price}/0" for price in range(EVENTS)]] * 2
    assert "serving broadcast 'prices//refresh'" in worker.log
    assert broadcasts.app.inspector.topic_sync("prices").groups == []


def test_a_process_learns_how_many_events_it_missed_while_stopped(ledger: Ledger, workers: Workers) -> None:
    worker = serve(workers)
    broadcasts.prices.publish_sync(0)
    ledger.until_ended(1)
    worker.freeze()
    for first in range(1, 3001, 500):
        broadcasts.prices.publish_many_sync(range(first, first + 500))
    worker.thaw()
    eventually(lambda: ledger.ends("3000/"), "the last event")
    (events,) = given(ledger).values()
    # 1000 events are kept. The process may still have received the first of the older events: its last read
    # was waiting, and the server replied while the process was stopped.
    got = len(events) - 1001
    assert events[: got + 1] == [f"{price}/0" for price in range(got + 1)]
    assert events[got + 1 :] == [f"2001/{2000 - got}", *(f"{price}/0" for price in range(2002, 3001))]
    assert f"broadcast 'prices//refresh' missed {2000 - got} events of topic 'prices'" in worker.log
    assert got <= 200


def test_a_broadcast_continues_at_its_position_after_a_server_restart(server: Server, ledger: Ledger, workers: Workers) -> None:
    worker = serve(workers)
    broadcasts.prices.publish_many_sync(range(10))
    ledger.until_ended(10)
    server.kill()
    eventually(lambda: "the server is unreachable" in worker.log, "the worker to log the outage")
    server.start()
    broadcasts.prices.publish_many_sync(range(10, 20))
    ledger.until_ended(20)
    assert list(given(ledger).values()) == [[f"{price}/0" for price in range(20)]]
    eventually(lambda: "the server is back" in worker.log, "the worker to log the reconnect")
    assert "missed" not in worker.log


def test_a_flushed_topic_is_reported_as_a_gap_of_unknown_size(server: Server, ledger: Ledger, workers: Workers) -> None:
    worker = serve(workers)
    broadcasts.prices.publish_many_sync(range(10))
    ledger.until_ended(10)
    server.call("FLUSHALL")
    broadcasts.prices.publish_many_sync(range(10, 20))
    ledger.until_ended(20)
    (events,) = given(ledger).values()
    assert events == [f"{price}/{-1 if price == 10 else 0}" for price in range(20)]
    assert "broadcast 'prices//refresh' may have missed events: the log of topic 'prices' was deleted" in worker.log
