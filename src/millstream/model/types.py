"""Types that every layer uses."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

Seconds = float | timedelta
"""A duration: a number of seconds, or a timedelta."""

Status = Literal["blocked", "scheduled", "ready", "running", "done", "dead", "cancelled", "expired", "unknown"]
"""The states of a job.

- ``blocked``: waits behind another job with the same ordering key
- ``scheduled``: not due yet, or waiting for a retry
- ``ready``: waits for a worker
- ``running``: claimed by a worker
- ``done``: ended with success
- ``dead``: failed for good; a dead letter
- ``cancelled``: cancelled before it started, or before a retry started
- ``expired``: expired before it started, or before a retry started
- ``unknown``: the server stores nothing about it
"""

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
"""Why a job or event is dead.

- ``exhausted``: the last attempt failed
- ``rejected``: the handler raised ``Reject`` or an exception that is not retried, or called ``nack()``
- ``timeout``: the last attempt timed out, or any attempt with ``retry_timeouts=False``
- ``crashed``: more than ``max_crashes`` workers died while running it
- ``malformed``: the entry is not a Millstream message, or its body was lost
- ``oversize``: it exceeds ``max_payload_bytes``
- ``unknown_task``: no worker has its task
- ``invalid_arguments``: its arguments, or the event, do not match the annotations
- ``invalid_result``: the return value cannot be encoded, is too large, or does not match the annotation
- ``expired``: an event expired in a group with ``keep_expired=True``
- ``pending_full``: ``max_pending_per_key`` messages were already waiting behind a retry of its key
- ``stopped``: an earlier message with its key is dead, and ``on_failure`` is ``"stop"``
"""
