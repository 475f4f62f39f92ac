"""The short form of the chaos suite: every fault once, few jobs, every job accounted for. ``make chaos`` runs the long form."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from chaos.cases import ALL, play
from chaos.server import Engine, NotHere, binary
from chaos.stage import SHORT
from chaos.trials import kills

SEED = 1
CASES = {case.name: case for case in ALL}
ACTS = {
    "killed": ("wrong_clocks", "kill_child", "kill_supervisor", "kill_worker"),
    "stopped": ("stop_child", "stop_supervisor", "stop_worker", "stop_worker_briefly"),
    "server": ("restart", "fill", "kill_always", "demote", "stall", "go_away"),
    "forgetful": ("kill_everysec", "flush_scripts", "destroy_groups", "lose_leases", "flush_all"),
    "failover": ("fail_over",),
    "network": ("lose_replies", "cut_all", "tear_replies", "cut_one", "delay", "stall_network", "half_open"),
    "disk": ("fill_disk",),
}
"""Groups of faults. The faults of a group strike one after another, on a stage built for the first fault."""


def test_every_fault_belongs_to_exactly_one_act() -> None:
    assert sorted(name for names in ACTS.values() for name in names) == sorted(CASES)


@pytest.mark.parametrize("act", ACTS)
def test_no_job_is_lost_and_every_second_run_has_a_cause(act: str) -> None:
    strikes = [CASES[name] for name in ACTS[act]]
    try:
        result = asyncio.run(play(strikes[0], strikes, "valkey", SEED, SHORT, bounded=False))
    except NotHere as why:
        pytest.skip(str(why))
    print(result.server, result.verdict, *result.notes, result.logs, sep="\n")
    assert result.verdict.breaches == []


def test_short_form_of_the_kill_trial() -> None:
    engine: Engine = "redis" if binary("redis") else "valkey"
    test = kills.KillTest(jobs=500, rounds=1, ahead=500, scale=replace(kills.SCALE, lease=1.0, workers=2))
    result = asyncio.run(kills.run(test, engine, SEED, bounded=False))
    print(result.server, result.verdict, result.logs, sep="\n")
    assert result.verdict.breaches == []
    assert result.verdict.done == result.verdict.accepted >= 500
