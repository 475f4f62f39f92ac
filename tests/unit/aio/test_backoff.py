"""Waiting between attempts to reach an unreachable server."""

from __future__ import annotations

from itertools import islice

from millstream.aio.backoff import FIRST_SECONDS, LONGEST_SECONDS, PATIENT_SECONDS, pauses


def test_pauses_double_up_to_a_maximum_and_are_randomised_over_their_upper_half() -> None:
    for longest in (LONGEST_SECONDS, PATIENT_SECONDS):
        limit = FIRST_SECONDS
        for pause in islice(pauses(longest), 50):
            assert limit / 2 <= pause <= limit
            limit = min(2 * limit, longest)
        assert limit == longest


def test_every_outage_begins_with_the_shortest_pause() -> None:
    for _ in range(20):
        assert next(pauses()) <= FIRST_SECONDS


def test_many_workers_do_not_reconnect_at_the_same_moment() -> None:
    assert len({tuple(islice(pauses(), 3)) for _ in range(100)}) == 100
