"""The report: what was done, the results, and the tests that check each promise for bad days."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.bad_days import ROWS
from chaos.cases import Result
from chaos.checker import Verdict
from chaos.trials.kills import KillTest
from chaos.trials.order import OrderResult
from chaos.trials.outage import Outage
from chaos.trials.ownership import UNOWNED_SECONDS, OwnershipResult
from chaos.trials.refusals import Refusal
from chaos.trials.trial import TrialResult
from millstream import __version__

PATH = Path(__file__).parent / "REPORT.md"
MOST_SHOWN = 20
"""The most broken promises that are listed."""

FOLDERS = re.compile(r"/(?:[\w.-]+/)*chaos-\w+/")
"""Folders of the servers' sockets, which are removed from the report."""


@dataclass
class Findings:
    """All results of a run."""

    seed: int
    cases: list[Result] = field(default_factory=list[Result])
    kill_tests: list[tuple[KillTest, Result]] = field(default_factory=list[tuple[KillTest, Result]])
    orders: list[OrderResult] = field(default_factory=list[OrderResult])
    ownerships: list[OwnershipResult] = field(default_factory=list[OwnershipResult])
    trials: list[TrialResult] = field(default_factory=list[TrialResult])
    outages: list[Outage] = field(default_factory=list[Outage])
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    seconds: float = 0.0

    @property
    def breaches(self) -> list[str]:
        """Every broken promise."""
        found = [f"{result.case.name} on {result.server}: {b}" for result in self.cases for b in result.verdict.breaches]
        found += [f"kill trial on {result.server}: {b}" for _, result in self.kill_tests for b in result.verdict.breaches]
        found += [
            f"{order.test.what}, {order.test.on_failure}, on {order.server}: {b}"
            for order in self.orders
            for b in order.breaches
        ]
        found += [f"ownership on {each.server}: {b}" for each in self.ownerships for b in each.breaches]
        found += [f"{trial.name} on {trial.server}: {b}" for trial in self.trials for b in trial.breaches]
        found += [f"outage: {b}" for outage in self.outages for b in outage.verdict.breaches]
        found += [f"{refusal.why}: ended with {refusal.code}" for refusal in self.refusals if refusal.code != 3]
        return found

    @property
    def shown(self) -> list[str]:
        """The first broken promises, and the number of the others."""
        first, more = self.breaches[:MOST_SHOWN], len(self.breaches) - MOST_SHOWN
        return [*first, f"and {more} more"] if more > 0 else first


def render(findings: Findings) -> str:
    """Return the report in Markdown."""
    parts = [
        _head(findings),
        _faults(findings.cases),
        _kill_tests(findings.kill_tests),
        _orders(findings.orders),
        _ownerships(findings.ownerships),
        _trials(findings.trials),
        _outages(findings.outages, findings.refusals),
        _BAD_DAYS + _table(("event", "what the user gets", "checked by"), _bad_days()),
    ]
    return FOLDERS.sub("…/", "\n\n".join(part for part in parts if part)) + "\n"


def _head(findings: Findings) -> str:
    said = ["# Chaos report", ""]
    said.append(
        f"Written by `make chaos`. Millstream {__version__}, Python {platform.python_version()}, {platform.system()}, "
        f"{os.cpu_count()} cores, seed {findings.seed}, {findings.seconds / 60:.0f} minutes."
    )
    said.append("")
    if findings.breaches:
        said += [f"**Broken promises: {len(findings.breaches)}**", "", *(f"- {breach}" for breach in findings.shown)]
    else:
        said.append(
            f"**{_accepted(findings):,} jobs and events were accepted under faults. None was lost, except by servers that lost "
            "their own data. Every second run is explained by a fault that struck the process of the first run.**"
        )
    return "\n".join(said)


def _accepted(findings: Findings) -> int:
    verdicts: list[Verdict] = [result.verdict for result in findings.cases]
    verdicts += [result.verdict for _, result in findings.kill_tests] + [outage.verdict for outage in findings.outages]
    events = [result.verdict.published for result in findings.orders]
    events += [result.verdict.published for result in findings.ownerships]
    verdicts += [result.verdict for result in findings.trials]
    return sum(verdict.accepted for verdict in verdicts) + sum(events)


# -- faults ----------------------------------------------------------------------------------------------------------------

_FAULTS = """## Faults

Each case runs real `millstream worker` processes, a real server and a producer. The producer keeps sending during the fault.
If it does not learn whether a job was stored, it sends the job again with the same id. Producers record the answers they
receive, and handlers record their runs, in files outside the server. Every job is accounted for from these files.

- *repeated*: jobs accepted after an enqueue of unknown fate
- *second runs*: by the fault that explains them. A second run without an explanation is a breach, and so is a lost job.
- *recovery*: the longest time from a kill until the jobs of the dead process ran elsewhere, or from the end of an outage until
  a handler started

Leases are {lease:g} s.

"""


def _faults(results: Sequence[Result]) -> str:
    if not results:
        return ""
    columns = ("fault", "server", "strikes", "accepted", "repeated", "done", "dead", "lost", "second runs", "recovery")
    text = _FAULTS.format(lease=_lease()) + _table(columns, (_row(result) for result in results))
    meanings = {result.case.title: result.case.meaning for result in results}
    text += "\n\nEach fault and its promise:\n\n" + "\n".join(f"- **{title}**: {m}" for title, m in meanings.items())
    notes = [f"- {result.case.title}, {result.server}: {'; '.join(result.notes)}" for result in results if result.notes]
    if notes:
        text += "\n\nNotes:\n\n" + "\n".join(notes)
    return text


def _lease() -> float:
    from chaos.stage import FULL

    return FULL.lease


def _row(result: Result) -> tuple[str, ...]:
    verdict, case = result.verdict, result.case
    if result.skipped:
        return (case.title, "", "0", "", "", "", "", "", f"skipped: {result.skipped}", "")
    return (case.title, result.server, str(case.strikes), *_figures(verdict))


def _figures(verdict: Verdict) -> tuple[str, ...]:
    dead = ", ".join(f"{count} {reason}" for reason, count in verdict.dead.items()) or "0"
    lost = str(len(verdict.lost)) + (f" ({verdict.wiped} with the server's data)" if verdict.wiped else "")
    twice = ", ".join(f"{count}: {reason}" for reason, count in sorted(verdict.twice.items())) or "0"
    return (
        f"{verdict.accepted:,}",
        f"{verdict.repeated:,}",
        f"{verdict.done:,}",
        dead,
        lost,
        twice,
        f"{verdict.longest:.2f} s",
    )


# -- trials ----------------------------------------------------------------------------------------------------------------


def _kill_tests(tests: Sequence[tuple[KillTest, Result]]) -> str:
    if not tests:
        return ""
    columns = ("server", "accepted", "done", "dead", "lost", "second runs", "recovery", "around the restart", "killed twice")
    rows = [_kill_test(result) for _, result in tests]
    test = tests[0][0]
    text = (
        f"## Repeated kills\n\n{test.meaning} A recovery may take {test.scale.lease + 2:g} s; around the restart, "
        f"{2 * test.scale.lease + 2:g} s in addition to the outage. A job whose processes were killed twice runs alone, in a "
        "process started for it.\n\n"
    )
    return text + _table(columns, rows)


def _kill_test(result: Result) -> tuple[str, ...]:
    verdict = result.verdict
    accepted, _, done, dead, lost, twice, _ = _figures(verdict)
    times = (verdict.longest_recovery, verdict.longest_around_restart, verdict.longest_alone)
    return (result.server, accepted, done, dead, lost, twice, *(f"{seconds:.2f} s" for seconds in times))


def _orders(orders: Sequence[OrderResult]) -> str:
    if not orders:
        return ""
    columns = (
        "what", "a death", "server", "accepted", "done", "dead", "replayed", "retries", "strikes", "shard moves",
        "without an owner",
    )  # fmt: skip
    meanings = {result.test.of: f"- **Ordered {result.test.of}s**: {result.test.meaning}" for result in orders}
    text = (
        "## Order\n\nEvents of an ordered topic and jobs of an ordered task, while workers are killed and stopped.\n\n"
        + "\n".join(meanings.values())
        + "\n\nIf a death stops its key, the stopped keys are cleared with replay at the end. Then every message must be done, "
        "in order.\n\nThe evidence is the handlers' own record. Per key, an event or job starts only when the previous one is "
        "done or dead. Two never run at the same time, none is lost, and none starts while its key is stopped. *without an "
        "owner*: the longest time for which a shard had no living owner. Kills come faster than leases lapse here, so some of "
        "them strike the worker that takes over.\n\n"
    )
    return text + _table(columns, map(_order, orders))


def _order(result: OrderResult) -> tuple[str, ...]:
    verdict = result.verdict
    return (
        result.test.what,
        "skips" if result.test.on_failure == "skip" else "stops its key",
        result.server,
        f"{verdict.published:,}",
        f"{verdict.done:,}",
        _counted(verdict.dead.items()),
        _counted(verdict.cleared.items()),
        f"{verdict.retries:,}",
        _counted(result.strikes.items()),
        str(result.moves) if result.test.shards else "",
        f"{result.unowned:.2f} s" if result.test.shards else "",
    )


def _ownerships(ownerships: Sequence[OwnershipResult]) -> str:
    if not ownerships:
        return ""
    text = "## Shard ownership"
    for each in ownerships:
        rows = [(step.what, f"{step.seconds:.2f} s", f"{step.unowned:.2f} s") for step in each.steps]
        text += (
            f"\n\n{each.test.meaning}\n\nOn {each.server}, {each.looks:,} samples show {each.moves} moves and no shard with "
            f"two owners. {each.verdict.done:,} of {each.verdict.published:,} events are done in order, and the epochs of each "
            f"shard only rise. {each.refused} outcomes of the stopped owner were refused, and another worker settled those "
            f"events. The longest time allowed without an owner that could work is the lease and {UNOWNED_SECONDS:g} s.\n\n"
        )
        text += _table(("event", "even shares after", "longest time without an owner"), rows)
    return text


def _trials(trials: Sequence[TrialResult]) -> str:
    """Return, per trial: what is done, the account of every job, and the expectations, with the servers side by side."""
    parts: list[str] = []
    for name in dict.fromkeys(trial.name for trial in trials):
        same = [trial for trial in trials if trial.name == name]
        meanings = dict.fromkeys(trial.meaning for trial in same)
        parts.append(f"## {same[0].title}\n\n" + "\n\n".join(meanings))
        if any(trial.verdict.accepted for trial in same):
            rows = [(trial.server, *_account(trial.verdict)) for trial in same]
            parts.append(_table(("server", "accepted", "done", "dead", "lost", "second runs"), rows))
        parts.append(_table(("expected", *(trial.server for trial in same)), _expectations(same)))
    return "\n\n".join(parts)


def _account(verdict: Verdict) -> tuple[str, ...]:
    accepted, _, done, dead, lost, twice, _ = _figures(verdict)
    return accepted, done, dead, lost, twice


def _expectations(trials: Sequence[TrialResult]) -> Iterable[tuple[str, ...]]:
    found = [{each.name: each for each in trial.expectations} for trial in trials]
    for name in dict.fromkeys(each.name for trial in trials for each in trial.expectations):
        cells = (each.get(name) for each in found)
        yield name, *("" if cell is None else cell.found if cell.kept else f"**broken**: {cell.found}" for cell in cells)


def _counted(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts) or "0"


def _outages(outages: Sequence[Outage], refusals: Sequence[Refusal]) -> str:
    if not outages:
        return ""
    rows: list[tuple[str, ...]] = []
    said: list[str] = []
    for outage in outages:
        for absence in outage.absences:
            what, lines = f"{absence.how}, {absence.seconds:g} s", f"{len(absence.going)} and {len(absence.coming)}"
            rows.append((what, f"{absence.cpu_percent:.1f} %", f"{absence.back:.2f} s", lines))
            said += [f"- {absence.how}:", *(f"  - `{line}`" for line in absence.going + absence.coming)]
    verdict = outages[0].verdict
    text = "## One minute without a server\n\n"
    text += _table(
        ("outage", "CPU of supervisor and child during it", "first handler after", "log lines at start and end"), rows
    )
    text += (
        f"\n\nDuring the outages {outages[0].ended_meanwhile} running jobs ended, and the leases outlasted them. Of "
        f"{verdict.accepted} jobs, {verdict.done} are done, {len(verdict.lost)} are lost and {verdict.twice.total()} ran "
        "twice. No worker exited.\n\nLog lines of the workers, which serve three queues:\n\n" + "\n".join(said)
    )
    if refusals:
        ends = [(r.why, str(r.code), f"{r.seconds:.1f} s", f"`{r.said[0]}`") for r in refusals]
        text += "\n\n" + _table(("unusable server", "exit code", "after", "message"), ends)
    return text


# -- bad days --------------------------------------------------------------------------------------------------------------

_BAD_DAYS = """## Bad input and bad days

Every promise for bad input and bad days, with the tests and cases that check it. The names of cases are in italics.

"""


def _bad_days() -> Iterable[tuple[str, str, str]]:
    for row in ROWS:
        held = [f"*{name}*" for name in row.cases] + [f"`{test}`" for test in row.tests]
        yield row.happens, row.gets, "<br>".join(held)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
