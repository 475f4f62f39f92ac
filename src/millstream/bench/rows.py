"""The rows: what is measured, in which unit, and whether more is better."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from millstream.errors import UsageError

Way = Literal["drain", "enqueue", "latency", "bytes", "rss"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured quantity."""

    name: str
    title: str
    way: Way
    """How it is measured."""
    unit: str
    handler: str = "noop"
    results: bool = False
    processes: int = 1

    @property
    def more_is_better(self) -> bool:
        """True for rates, False for times and memory."""
        return self.way in ("drain", "enqueue")


ROWS = (
    Row(name="drain", way="drain", unit="jobs/s", title="No-op drain: one process, concurrency 100, results off"),
    Row(name="results", way="drain", unit="jobs/s", results=True, title="No-op drain, results on"),
    Row(name="io", way="drain", unit="jobs/s", handler="io", title="10 ms I/O handlers: one process, concurrency 100"),
    Row(name="sync", way="drain", unit="jobs/s", handler="sync", title="Plain (sync) no-op handlers, one process"),
    Row(name="bulk", way="enqueue", unit="jobs/s", title="Bulk enqueue"),
    Row(name="concurrent", way="enqueue", unit="jobs/s", title="100 concurrent single enqueues"),
    Row(name="sequential", way="enqueue", unit="jobs/s", title="Sequential single enqueues"),
    Row(name="latency", way="latency", unit="ms", handler="stamped", title="Enqueue to handler start on an idle system"),
    Row(name="bytes", way="bytes", unit="bytes", title="Server memory per queued tiny job"),
    Row(name="rss", way="rss", unit="MB", handler="stamped", title="Resident memory of an idle worker process"),
    Row(name="events", way="drain", unit="events/s", handler="event", title="Events, no-op handler: one process, one group"),
    Row(name="batches", way="drain", unit="events/s", handler="batch", title="Events, no-op handler of batches: the same"),
    Row(name="publish", way="enqueue", unit="events/s", handler="publish", title="Publishing many events"),
)


def select(names: str, rows: Sequence[Row] = ROWS) -> list[Row]:
    """Return the rows with these comma-separated names or prefixes of names. Raises UsageError for an unknown name."""
    wanted: list[Row] = []
    for name in (name.strip() for name in names.split(",")):
        found = [row for row in rows if row.name == name] or [row for row in rows if name and row.name.startswith(name)]
        if not found:
            raise UsageError(f"there is no row {name!r}; the rows are {listed(rows)}")
        wanted += found
    return [row for row in rows if row in wanted]


def listed(rows: Iterable[Row]) -> str:
    """Return the names of rows, separated by commas."""
    return ", ".join(row.name for row in rows)
