"""The rows of the contest: those of ``millstream bench``, many workers on one queue, pipelines, and order per key."""

from __future__ import annotations

from millstream.bench.rows import ROWS as OF_ONE
from millstream.bench.rows import Row

_ALL = (
    *OF_ONE,
    Row(
        name="workers-10",
        way="drain",
        unit="jobs/s",
        handler="gated",
        processes=10,
        title="No-op drain by 10 worker processes on one queue, start-up not included",
    ),
    Row(
        name="workers-40",
        way="drain",
        unit="jobs/s",
        handler="gated",
        processes=40,
        title="No-op drain by 40 worker processes on one queue, start-up not included",
    ),
    Row(
        name="pipelined",
        way="enqueue",
        unit="events/s",
        handler="event",
        title="Publishing many events, in pipelines if there is no bulk call",
    ),
    Row(
        name="ordered",
        way="drain",
        unit="events/s",
        handler="ordered",
        title="Events in strict order per key, 10,000 keys: one process, one group",
    ),
    Row(
        name="ordered-200",
        way="drain",
        unit="events/s",
        handler="ordered-200",
        title="Events in strict order per key, 200 keys: one process, one group",
    ),
)
ROWS = {row.name: row for row in _ALL}
