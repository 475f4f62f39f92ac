"""Broadcasts with real workers: every process gets every event, or is told how many it missed."""

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
    eventually(lambda: worker.log.count(" serves ") == processes, "the processes to serve")
    return worker


def given(ledger: Ledger) -> dict[int, list[str]]:
    """What each process was given: the event, and how many it missed before it."""
    found: dict[int, list[str]] = {}
    for line in ledger.ends():
        found.setdefault(line.pid, []).append(line.key)
    return found


def test_every_process_gets_every_event_once_and_in_order(ledger: Ledger, workers: Workers) -> None:
    broadcasts.prices.publish_sync(-1)
    worker = serve(workers, processes=2)
    broadcasts.prices.publish_many_sync(range(EVENTS))
    ledger.until_ended(2 * EVENTS)
    assert sorted(given(ledger)) == worker.children()
    assert list(given(ledger).values()) == [[f"{price}/0" for price in range(EVENTS)]] * 2
    assert "serving broadcast 'prices//refresh'" in worker.log
    assert broadcasts.app.inspector.topic_sync("prices").groups == []


def test_what_was_missed_while_a_process_was_stopped_is_counted(ledger: Ledger, workers: Workers) -> None:
    worker = serve(workers)
    broadcasts.prices.publish_sync(0)
    ledger.until_ended(1)
    worker.freeze()
    for first in range(1, 3001, 500):
        broadcasts.prices.publish_many_sync(range(first, first + 500))
    worker.thaw()
    eventually(lambda: ledger.ends("3000/"), "the last event")
    (events,) = given(ledger).values()
    # 1000 are kept. Of those before, it may have got the first ones: its last read waited,
    # and was answered while it was stopped.
    got = len(events) - 1001
    assert events[: got + 1] == [f"{price}/0" for price in range(got + 1)]
    assert events[got + 1 :] == [f"2001/{2000 - got}", *(f"{price}/0" for price in range(2002, 3001))]
    assert f"broadcast 'prices//refresh' missed {2000 - got} events of topic 'prices'" in worker.log
    assert got <= 200


def test_a_broadcast_outlives_its_server_and_goes_on_where_it_was(server: Server, ledger: Ledger, workers: Workers) -> None:
    worker = serve(workers)
    broadcasts.prices.publish_many_sync(range(10))
    ledger.until_ended(10)
    server.kill()
    eventually(lambda: "the server is unreachable" in worker.log, "the worker to notice")
    server.start()
    broadcasts.prices.publish_many_sync(range(10, 20))
    ledger.until_ended(20)
    assert list(given(ledger).values()) == [[f"{price}/0" for price in range(20)]]
    eventually(lambda: "the server is back" in worker.log, "the worker to say so")
    assert "missed" not in worker.log


def test_a_topic_that_was_flushed_is_told_as_a_gap_that_nobody_can_count(
    server: Server, ledger: Ledger, workers: Workers
) -> None:
    worker = serve(workers)
    broadcasts.prices.publish_many_sync(range(10))
    ledger.until_ended(10)
    server.call("FLUSHALL")
    broadcasts.prices.publish_many_sync(range(10, 20))
    ledger.until_ended(20)
    (events,) = given(ledger).values()
    assert events == [f"{price}/{-1 if price == 10 else 0}" for price in range(20)]
    assert "broadcast 'prices//refresh' may have missed events: the log of topic 'prices' was deleted" in worker.log
