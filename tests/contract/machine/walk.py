"""Runs random histories until enough steps are made."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contract.machine.backends import BackendPair, MakeBackend

# number of steps in one history
STEPS = 60


def walk(left: MakeBackend, right: MakeBackend, steps: int, histories: type[BackendPair], **options: Any) -> int:
    """Run at least this many steps. Returns the number of steps made."""

    class Backends(histories):  # type: ignore[misc, valid-type]
        make_backends = (left, right)
        walked = 0

    while Backends.walked < steps:
        examples = max(10, (steps - Backends.walked) // STEPS)
        profile = settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            report_multiple_bugs=False,
            **options,
        )
        run_state_machine_as_test(Backends, settings=profile)
    return Backends.walked
