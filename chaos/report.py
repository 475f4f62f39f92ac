"""The report: what was done, what came of it, and which test holds each promise for bad days."""

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
"""Broken promises that are listed."""

FOLDERS = re.compile(r"/(?:[\w.-]+/)*chaos-\w+/")
"""Where servers had their sockets."""


@dataclass
class Findings:
    """Everything a run found out."""

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
        found += [f"kill test on {result.server}: {b}" for _, result in self.kill_tests for b in result.verdict.breaches]
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
        """The first of them, and how many more there are."""
        first, more = self.breaches[:MOST_SHOWN], len(self.breaches) - MOST_SHOWN
        return [*first, f"and {more} more"] if more > 0 else first


def render(findings: Findings) -> str:
    """The whole report, in Markdown."""
    parts = [
        _head(findings),
        _faults(findings.cases),
        _kill_tests(findings.kill_tests),
        _orders(findings.orders),
        _ownerships(findings.ownerships),
        _trials(findings.trials),
        _outages(findings.outages, findings.refusals),
        _BAD_DAYS + _table(("what happens", "what the user gets", "held by"), _bad_days()),
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
        said += [f"**{len(findings.breaches)} promises were broken:**", "", *(f"- {breach}" for breach in findings.shown)]
    else:
        said.append(
            f"**{_accepted(findings):,} jobs and events were accepted under faults. None was lost but by a server that lost "
            "its own data, and every second run is explained by the fault that struck the process of the first.**"
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

Real `millstream worker` processes, a real server, and a producer that goes on during the fault and sends again, under the same
id, whatever it was told is of unknown fate. What producers were told and what handlers did is written to files by those who
saw it, outside of the server, and every job is accounted for from there.

*repeated*: accepted after an enqueue of unknown fate. *second runs*: by what explains them; one without an explanation would
be a breach, and so would a lost job. *recovery*: the longest time from a kill until what the dead process held ran elsewhere,
or from the end of an outage until a handler began. Leases are {lease:g} s.

"""


def _faults(results: Sequence[Result]) -> str:
    if not results:
        return ""
    columns = ("fault", "server", "strikes", "accepted", "repeated", "done", "dead", "lost", "second runs", "recovery")
    text = _FAULTS.format(lease=_lease()) + _table(columns, (_row(result) for result in results))
    meanings = {result.case.title: result.case.meaning for result in results}
    text += "\n\nWhat is done, and what is promised:\n\n" + "\n".join(f"- **{title}**: {m}" for title, m in meanings.items())
    notes = [f"- {result.case.title}, {result.server}: {'; '.join(result.notes)}" for result in results if result.notes]
    if notes:
        text += "\n\nNoted on the way:\n\n" + "\n".join(notes)
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
        f"## The kill test\n\n{test.meaning} A recovery may take {test.scale.lease + 2:g} s, around the restart "
        f"{2 * test.scale.lease + 2:g} s beside the time the server was away. What was killed twice runs alone, in a process "
        "that is started for it.\n\n"
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
        "what", "a death", "server", "accepted", "done", "dead", "replayed", "retries", "strikes", "shards moved",
        "without an owner",
    )  # fmt: skip
    meanings = {result.test.of: f"- **Ordered {result.test.of}s**: {result.test.meaning}" for result in orders}
    text = (
        "## Order\n\nEvents of an ordered topic, and jobs of an ordered task, while workers are killed and leave.\n\n"
        + "\n".join(meanings.values())
        + "\n\nIf a death stops its key, the stopped keys are cleared with replay at the end. Then everything must be done, in "
        "order.\n\nThe evidence is what handlers wrote down. Per key, an event or job begins when the one before it is done or "
        "dead. There are never two at a time, none is lost, and nothing of a stopped key begins. *without an owner*: the "
        "longest time for which a shard had no living owner. Kills come faster than leases expire here, so some of them strike "
        "the worker that takes over.\n\n"
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
    text = "## Who owns a shard"
    for each in ownerships:
        rows = [(step.what, f"{step.seconds:.2f} s", f"{step.unowned:.2f} s") for step in each.steps]
        text += (
            f"\n\n{each.test.meaning} On {each.server}: {each.looks:,} looks, {each.moves} moves, no shard with two owners at "
            f"any look; {each.verdict.done:,} of {each.verdict.published:,} events done in order, epochs of each shard rising; "
            f"{each.refused} outcomes of the stopped owner were refused, and each of its events was settled by another. A "
            f"shard may have no owner that could work for the lease and {UNOWNED_SECONDS:g} s.\n\n"
        )
        text += _table(("what happened", "shared evenly after", "a shard without an owner, at most"), rows)
    return text


def _trials(trials: Sequence[TrialResult]) -> str:
    """Per trial: what is done, the account of every job, and what was expected, with all servers side by side."""
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
    text = "## A minute without a server\n\n"
    text += _table(
        ("outage", "CPU meanwhile, supervisor and child", "first handler after", "log lines, going and coming"), rows
    )
    text += (
        f"\n\n{outages[0].ended_meanwhile} jobs ended meanwhile; the leases outlasted it. Of {verdict.accepted} jobs "
        f"{verdict.done} are done, {len(verdict.lost)} lost, {verdict.twice.total()} ran twice. No worker ended.\n\n"
        "What the workers logged, who serve three queues:\n\n" + "\n".join(said)
    )
    if refusals:
        ends = [(r.why, str(r.code), f"{r.seconds:.1f} s", f"`{r.said[0]}`") for r in refusals]
        text += "\n\n" + _table(("server that will never serve", "exit code", "after", "says"), ends)
    return text


# -- bad days --------------------------------------------------------------------------------------------------------------

_BAD_DAYS = """## Bad input and bad days

Every row of the promise, and the tests that hold it. Names of cases above are in italics.

"""


def _bad_days() -> Iterable[tuple[str, str, str]]:
    for row in ROWS:
        held = [f"*{name}*" for name in row.cases] + [f"`{test}`" for test in row.tests]
        yield row.happens, row.gets, "<br>".join(held)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
