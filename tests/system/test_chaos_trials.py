"""The short form of the chaos trials, without time limits: the outcomes and their order are asserted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from chaos.server import Engine, binary
from chaos.trials import busy, fleet, idle, lost_calls, storm
from chaos.trials.trial import TrialResult
from chaos.trials.verbs import VERBS, Verb

SEED = 1
OTHER: Engine = "redis" if binary("redis") else "valkey"
"""The kind of server that other tests use less often."""


def kept(trial: Coroutine[Any, Any, TrialResult]) -> TrialResult:
    result = asyncio.run(trial)
    print(result.server, result.verdict, *result.expectations, result.logs, sep="\n")
    assert result.breaches == []
    assert result.expectations
    return result


def test_a_dead_workers_jobs_run_although_all_other_workers_are_busy() -> None:
    result = kept(busy.run(busy.BusyTest(lease=1.0), OTHER, SEED, bounded=False))
    assert (result.verdict.done, result.verdict.lost) == (30, [])


def test_the_next_call_succeeds_after_the_network_dropped_idle_connections() -> None:
    kept(idle.run(idle.IdleTest(idle=1.0, forgets_after=0.5), OTHER, SEED, bounded=False))


def test_new_tasks_run_while_workers_of_two_releases_serve() -> None:
    test = fleet.FleetTest(old=2, jobs=10, snoozes=6, grace=5.0, late=0.5, lease=30.0)
    result = kept(fleet.run(test, OTHER, SEED, bounded=False))
    assert result.verdict.done == result.verdict.accepted == 80


def test_each_method_reports_the_truth_whichever_of_its_calls_is_lost() -> None:
    kept(lost_calls.run(lost_calls.LostCallsTest(), "valkey", SEED))


@pytest.mark.parametrize("planted", [replace(VERBS[0], answer=False), replace(VERBS[0], state=(2, 2))], ids=["answer", "state"])
def test_the_trial_detects_a_wrong_answer_or_state_of_a_method(planted: Verb) -> None:
    result = asyncio.run(lost_calls.run(lost_calls.LostCallsTest((planted,)), "valkey", SEED))
    assert len(result.breaches) == 1 and "undisturbed" in result.breaches[0]


def test_a_storm_of_faults_loses_nothing_and_keeps_order_per_key() -> None:
    test = storm.StormTest(seconds=8.0, keys=20, rate=80.0, workers=2, lease=1.5)
    result = kept(storm.run(test, OTHER, SEED))
    assert result.verdict.done == result.verdict.accepted > 0
