"""A shard never has two owners, and soon gets a new one: the chaos suite's ownership trial, without time limits."""

from __future__ import annotations

import asyncio

from chaos.trials.ownership import OwnershipTest, run

SEED = 1


def test_live_workers_share_shards_evenly_and_a_shard_never_has_two_owners() -> None:
    result = asyncio.run(run(OwnershipTest(lease=1.0, kills=1), "valkey", SEED, bounded=False))
    print(result.server, *result.steps, result.logs, sep="\n")
    assert result.breaches == []
    assert [step.what for step in result.steps][:4] == [
        "1 joined, 1 in total",
        "1 joined, 2 in total",
        "1 joined, 3 in total",
        "2 joined, 5 in total",
    ]
    assert result.refused > 0, "the former owner continued after its stop, and its outcomes were refused"
