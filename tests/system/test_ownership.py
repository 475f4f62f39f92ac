"""A shard has one owner at a time, and soon another: the ownership test of the chaos suite, without bounds of time."""

from __future__ import annotations

import asyncio

from chaos.trials.ownership import OwnershipTest, run

SEED = 1


def test_shards_are_shared_evenly_by_those_who_are_there_and_never_have_two_owners() -> None:
    result = asyncio.run(run(OwnershipTest(lease=1.0, kills=1), "valkey", SEED, bounded=False))
    print(result.server, *result.steps, result.logs, sep="\n")
    assert result.breaches == []
    assert [step.what for step in result.steps][:4] == [
        "1 joined: 1 share",
        "1 joined: 2 share",
        "1 joined: 3 share",
        "2 joined: 5 share",
    ]
    assert result.refused > 0, "the owner that was stopped came back with nothing"
