"""Moves the wall clock of this process by ``$CHAOS_SKEW`` seconds, before anything else is imported."""

from __future__ import annotations

import os
import time

SKEW = float(os.environ.get("CHAOS_SKEW", "0"))
_time, _time_ns = time.time, time.time_ns


def wrong_time() -> float:
    return _time() + SKEW


def wrong_time_ns() -> int:
    return _time_ns() + int(SKEW * 1e9)


time.time, time.time_ns = wrong_time, wrong_time_ns
