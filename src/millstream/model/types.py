"""The type names shared by every layer."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

Seconds = float | timedelta
"""A duration: seconds, or a timedelta."""

Status = Literal["blocked", "scheduled", "ready", "running", "done", "dead", "cancelled", "expired", "unknown"]
"""The states of a job; the same words everywhere."""

DeadReason = Literal[
    "exhausted",
    "rejected",
    "timeout",
    "crashed",
    "malformed",
    "oversize",
    "unknown_task",
    "invalid_arguments",
    "invalid_result",
    "expired",
    "pending_full",
    "stopped",
]
"""Why a job is dead: a closed list."""
