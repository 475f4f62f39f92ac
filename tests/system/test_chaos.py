"""The chaos suite in short: every fault once, small counts, and every job accounted for. ``make chaos`` is the long form."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from chaos.cases import ALL, PLAIN, PROXIED, Case, play
from chaos.server import Engine, NotHere, binary
from chaos.stage import SHORT
from chaos.trials import kills

SEED = 1
CASES = {case.name: case for case in ALL}
ACTS = {
    "killed": (CASES["wrong_clocks"].setup, ("kill_child", "kill_supervisor", "wrong_clocks", "kill_worker")),
    "stopped": (PLAIN, ("stop_child", "stop_supervisor", "stop_worker", "stop_worker_briefly")),
    "server": (PLAIN, ("restart", "fill", "kill_always", "demote", "stall", "go_away")),
    "forgetful": (CASES["kill_everysec"].setup, ("kill_everysec", "flush_scripts", "destroy_groups", "flush_all")),
    "network": (PROXIED, ("lose_replies", "cut_all", "tear_replies", "cut_one", "delay", "stall_network", "half_open")),
    "disk": (CASES["fill_disk"].setup, ("fill_disk",)),
}
"""Faults that strike one after another on one stage."""


def test_every_fault_has_its_act() -> None:
    assert sorted(name for _, names in ACTS.values() for name in names) == sorted(CASES)


@pytest.mark.parametrize("act", ACTS)
def test_nothing_is_lost_and_every_second_run_is_explained(act: str) -> None:
    setup, names = ACTS[act]
    strikes: list[Case] = [CASES[name] for name in names]
    try:
        server, verdict, notes = asyncio.run(play(strikes, setup, "valkey", SEED, SHORT, bounded=False))
    except NotHere as why:
        pytest.skip(str(why))
    print(f"{server}: {verdict}", *notes, sep="\n")
    assert verdict.breaches == []


def test_the_kill_test_in_short() -> None:
    engine: Engine = "redis" if binary("redis") else "valkey"
    test = kills.KillTest(jobs=500, rounds=1, ahead=500, scale=replace(kills.SCALE, lease=1.0, workers=2))
    result = asyncio.run(kills.run(test, engine, SEED, bounded=False))
    print(f"{result.server}: {result.verdict}", *result.notes, sep="\n")
    assert result.verdict.breaches == []
    assert result.verdict.done == 500
