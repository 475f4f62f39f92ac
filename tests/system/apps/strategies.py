"""Custom scaling strategies."""

from __future__ import annotations

from millstream.worker.scaling import Metrics


class Two:
    """Always wants two processes."""

    def __call__(self, metrics: Metrics) -> int:
        assert metrics.maximum == 3
        return 2


def broken(metrics: Metrics) -> int:
    raise RuntimeError("no idea")


nothing = 42
