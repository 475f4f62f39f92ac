"""The report of a soak: the account of every job, and the figures over time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from soaked.gauge import Sample, courses

ENDINGS = ("done", "dead", "cancelled", "expired")

EVENTS = "event for two groups"

KEYS_MOST = 60
"""The most keys without an expiry that may remain at the end: a few per address, none per job, none per ordering key."""


@dataclass
class Account:
    seconds: float
    """Time during which jobs were sent."""
    sent: int
    accepted: Counter[str]
    """Accepted jobs by kind."""
    cancelled: int
    """Successful cancels, after which the job never runs."""
    purged: int
    """Purged dead letters."""
    totals: Mapping[str, Mapping[str, int]]
    """The server's totals by address."""
    keys: Mapping[str, int]
    """Remaining keys with their time to live in milliseconds; below 0: no expiry."""
    after: Mapping[str, float]
    """The figures after the end."""
    runs: Counter[int] = field(default_factory=Counter[int])
    """How many jobs were run how often."""
    exit_code: int | None = None
    complaints: list[str] = field(default_factory=list[str])

    def wrong(self) -> list[str]:
        """Return what does not add up."""
        found: list[str] = []
        jobs = self.accepted.total() - self.accepted[EVENTS]
        expected = {"jobs": jobs, "ticks/first": self.accepted[EVENTS], "ticks/second": self.accepted[EVENTS]}
        for name, accepted in expected.items():
            lost = accepted - sum(self.ended(name).values())
            if lost:
                found.append(f"{name}: {accepted:,} accepted, {lost:,} lost")
        ended = self.ended("jobs")
        if ended["dead"] != self.accepted["dead letter"] or self.purged != ended["dead"]:
            found.append(
                f"{self.accepted['dead letter']:,} jobs should die, {ended['dead']:,} did, {self.purged:,} were purged"
            )
        if ended["cancelled"] != self.cancelled:
            found.append(f"{self.cancelled:,} cancels succeeded, but the server counts {ended['cancelled']:,}")
        lapsed = sum(totals.get("lapsed", 0) for totals in self.totals.values())
        if lapsed:
            found.append(f"{lapsed:,} leases lapsed although no process died")
        never = self.sent - sum(self.runs[often] for often in self.runs if often)
        if never != ended["cancelled"] + ended["expired"]:
            found.append(f"{never:,} jobs never ran, but {ended['cancelled'] + ended['expired']:,} were cancelled or expired")
        if second := sum(count for often, count in self.runs.items() if often > 1):
            found.append(f"{second:,} jobs ran more than once")
        if self.exit_code != 0:
            found.append(f"the worker exited with code {self.exit_code}")
        return found + self.complaints

    def staying(self) -> list[str]:
        """Return the remaining keys without an expiry."""
        return sorted(key for key, left in self.keys.items() if left < 0)

    def expiring(self) -> dict[str, list[int]]:
        """Return the remaining milliseconds of keys that expire, by kind of key."""
        found: dict[str, list[int]] = {}
        for key, left in self.keys.items():
            if left >= 0:
                found.setdefault(re.sub(r":([a-z]):[^:}]+$", r":\1:…", key), []).append(left)
        return found

    def ended(self, name: str) -> dict[str, int]:
        """Return how jobs, or the events of a group, ended."""
        addresses = ("default", "ordered") if name == "jobs" else (name,)
        return {ending: sum(self.totals[address].get(ending, 0) for address in addresses) for ending in ENDINGS}


def passed(samples: Sequence[Sample], account: Account) -> bool:
    """Return whether every job is accounted for and no figure grew."""
    return not account.wrong() and all(course.flat for course in courses(samples)) and len(account.staying()) <= KEYS_MOST


def render(samples: Sequence[Sample], account: Account, machine: Mapping[str, Any], version: str) -> str:
    """Return the whole page."""
    on = "{cores} cores of {processor}, {memory_gb} GB, {system}, Python {python}".format(**machine)
    lines = [
        "# Soak",
        "",
        "All kinds of jobs for a long time, by `make soak`: a producer, `millstream worker --processes 2` and a Valkey server.",
        "",
        f"Measured {datetime.now(UTC):%Y-%m-%d %H:%M} UTC on {on}; {version}. {account.sent:,} jobs and events in "
        f"{account.seconds / 60:.1f} minutes, {account.sent / account.seconds:,.0f} per second.",
        "",
        "## Accounts",
        "",
        "| | accepted | " + " | ".join(ENDINGS) + " | lost |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    jobs = account.accepted.total() - account.accepted[EVENTS]
    events = account.accepted[EVENTS]
    for name, accepted in (("jobs", jobs), ("ticks/first", events), ("ticks/second", events)):
        ended = account.ended(name)
        title = name if name == "jobs" else f"events, group {name.partition('/')[2]}"
        numbers = (accepted, *ended.values(), accepted - sum(ended.values()))
        lines.append(f"| {title} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
    second = sum(count for often, count in account.runs.items() if often > 1)
    retried = sum(totals.get("retried", 0) for totals in account.totals.values())
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in account.accepted.items())
    lines += [
        "",
        f"Jobs that ran more than once: {second:,}. Intended retries: {retried:,}. The mix: {kinds}.",
        "",
        *(f"- **{wrong}**" for wrong in account.wrong()),
        "" if account.wrong() else "Every job is accounted for.",
        "",
        "## Memory, files and keys",
        "",
        f"Each value is the median of an eighth of {len(samples)} samples: in the first quarter, in the middle, and at the end "
        "of the load. The last column is after all jobs were settled and temporary keys had expired. Memory is resident and "
        "anonymous. A figure is flat if it grew by at most a tenth plus 2 MB, or plus 20 for counts.",
        "",
        "| | start | middle | end | | afterwards |",
        "|---|--:|--:|--:|---|--:|",
    ]
    for course in courses(samples):
        digits = 1 if "MB" in course.name else 0
        figures = (f"{figure:,.{digits}f}" for figure in (course.start, course.middle, course.end))
        verdict = "flat" if course.flat else "**grew**"
        lines.append(
            f"| {course.name} | " + " | ".join(figures) + f" | {verdict} | {account.after.get(course.name, 0):,.{digits}f} |"
        )
    stay = account.staying()
    lines += [
        "",
        f"Keys without an expiry at the end: {len(stay)} (limit {KEYS_MOST}): {', '.join(f'`{key}`' for key in stay)}.",
        "",
        "| keys that expire | count | the last in |",
        "|---|--:|--:|",
        *(f"| `{kind}` | {len(left):,} | {max(left) / 1000:,.0f} s |" for kind, left in sorted(account.expiring().items())),
        "",
    ]
    return "\n".join(lines)
