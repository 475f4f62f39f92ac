"""A worker whose consumer group is destroyed or flushed repairs it, logs the repair once, and says where it continues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.backends.redis.keys import GROUP, queue_keys
from millstream.model.address import Address
from tests.system.apps import events
from tests.system.harness import Ledger, Server, Worker, Workers, eventually

KEYS = queue_keys(events.app.settings.namespace, Address("numbers/easy"))
POLLS = 6


@pytest.fixture(autouse=True)
def here(server: Server) -> Iterator[None]:
    with events.app.override(server.url):
        yield


@pytest.fixture
def pair(workers: Workers) -> tuple[Worker, Worker]:
    """Two workers of one group."""
    first, second = (workers.launch("--queue", "numbers/easy", app="events:app") for _ in range(2))
    eventually(lambda: "serves" in first.log and "serves" in second.log, "both workers to be ready")
    return first, second


def publish(first: int, count: int = 100) -> None:
    events.numbers.publish_many_sync(range(first, first + count))


def until_handled(ledger: Ledger, first: int, count: int = 100) -> None:
    wanted = {f"easy-{number}" for number in range(first, first + count)}
    eventually(lambda: wanted <= {line.key for line in ledger.ends("easy-")}, f"the events from {first} on to be handled")


def until_polled(server: Server) -> None:
    """Wait until the workers have claimed many more times."""

    def calls() -> int:
        with server.client() as client:
            return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])

    before = calls()
    eventually(lambda: calls() > before + POLLS, "the workers to claim again and again")


def reports(pair: tuple[Worker, Worker], words: str) -> list[str]:
    return [line for worker in pair for line in worker.log.splitlines() if words in line]


def test_a_group_receives_events_published_before_its_worker_started(ledger: Ledger, workers: Workers) -> None:
    publish(0, 1_000)
    workers.launch("--queue", "numbers/easy", app="events:app")
    until_handled(ledger, 0, 1_000)
    assert set(ledger.runs("easy-").values()) == {1}


def test_a_destroyed_group_continues_at_its_stored_position_and_logs_it_once(
    server: Server, ledger: Ledger, pair: tuple[Worker, Worker]
) -> None:
    publish(0)
    until_handled(ledger, 0)
    with server.client() as client:
        last: Any = client.xrevrange(KEYS["log"], count=1)[0][0]  # pyright: ignore[reportOptionalSubscript]
        eventually(lambda: client.hget(KEYS["meta"], "cursor") == last, "the position to be stored")
    server.call("XGROUP", "DESTROY", KEYS["log"], "easy")
    publish(100)
    until_handled(ledger, 100)
    until_polled(server)
    (line,) = reports(pair, "had lost its position in the log")
    assert "group 'easy' of topic 'numbers'" in line and f"it was recreated and continues after entry {last.decode()}" in line
    assert set(ledger.runs("easy-").values()) == {1}
    assert reports(pair, "NOGROUP") == []


def test_a_destroyed_consumer_group_of_retries_is_recreated_and_logged_once(
    server: Server, ledger: Ledger, pair: tuple[Worker, Worker]
) -> None:
    server.call("XGROUP", "DESTROY", KEYS["stream"], GROUP)
    publish(0)
    until_handled(ledger, 0)
    until_polled(server)
    (line,) = reports(pair, "had lost the consumer group of its retries")
    assert line.endswith("group 'easy' of topic 'numbers' had lost the consumer group of its retries; "
                         "it was recreated and continues from the beginning: no event is waiting there")  # fmt: skip
    assert reports(pair, "NOGROUP") == []


def test_after_flushall_workers_continue_from_the_beginning_and_log_it_once(
    server: Server, ledger: Ledger, pair: tuple[Worker, Worker]
) -> None:
    publish(0)
    until_handled(ledger, 0)
    server.call("FLUSHALL")
    publish(100)
    until_handled(ledger, 100)
    until_polled(server)
    (line,) = reports(pair, "was missing on the server")
    assert "group 'easy' of topic 'numbers'" in line and "it was recreated and continues from the beginning" in line
    assert set(ledger.runs("easy-").values()) == {1}
    assert all(worker.code is None for worker in pair)
