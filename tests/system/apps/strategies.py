"""Strategies of a user's own."""

from __future__ import annotations

from millstream.worker.scaling import Metrics


class Two:
    """Two processes, whatever there is to do."""

    def __call__(self, metrics: Metrics) -> int:
        assert metrics.maximum == 3
        return 2


def broken(metrics: Metrics) -> int:
    raise RuntimeError("no idea")


nothing = 42
