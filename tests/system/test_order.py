"""Order per key survives failures, kills and stopping workers: the short form of the chaos suite's order trial."""

from __future__ import annotations

import asyncio

import pytest

from chaos.trials.order import OrderTest, run
from millstream.model.ordering import OnFailure

SEED = 1


@pytest.mark.parametrize("on_failure", ["skip", "stop"])
def test_events_of_a_key_are_done_in_publish_order_and_no_event_is_lost(on_failure: OnFailure) -> None:
    test = OrderTest(on_failure, keys=40, events=1_200, shards=4, lease=1.0, doomed=6, every=0.8, rate=300.0)
    result = asyncio.run(run(test, "valkey", SEED))
    print(result.server, result.strikes, result.stopped, result.verdict, result.logs, sep="\n")
    assert result.breaches == []
    verdict = result.verdict
    if on_failure == "skip":
        assert (verdict.done, verdict.dead.total()) == (1_194, 6)
    else:
        assert result.stopped is not None and result.stopped.dead["stopped"] > 0
        assert (verdict.done, verdict.dead.total(), result.keys_cleared) == (1_200, 0, 6)


@pytest.mark.parametrize(("on_failure", "shards"), [("skip", 0), ("stop", 4)])
def test_jobs_of_a_key_are_done_in_enqueue_order_and_no_job_is_lost(on_failure: OnFailure, shards: int) -> None:
    test = OrderTest(on_failure, "task", keys=40, events=1_000, shards=shards, lease=1.0, doomed=6, every=0.8, rate=300.0)
    result = asyncio.run(run(test, "valkey", SEED))
    print(result.server, result.strikes, result.stopped, result.verdict, result.logs, sep="\n")
    assert result.breaches == []
    dead = 6 if on_failure == "skip" else 0
    assert (result.verdict.done, result.verdict.dead.total()) == (1_000 - dead, dead)
