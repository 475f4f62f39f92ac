"""``python -m chaos``: run cases and trials and print their results. A full run also writes REPORT.md."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Coroutine
from typing import Any, get_args

from chaos import cases, report
from chaos.cases import ALL, Result
from chaos.report import Findings
from chaos.server import Engine, binary
from chaos.trials import busy, failovers, fleet, idle, kills, lost_calls, order, outage, ownership, refusals, storm
from chaos.trials.trial import TrialResult

TRIALS = (
    "kill_test", "order", "ordered_tasks", "ownership", "busy", "idle", "fleet", "lost_calls", "storm", "outage", "refusals",
    "failovers",
)  # fmt: skip


def main() -> int:
    arguments = _arguments()
    logging.getLogger("millstream").addHandler(logging.NullHandler())  # the clients' own log lines about faults are expected
    names = set(arguments.names)
    engines: list[Engine] = [engine for engine in get_args(Engine) if arguments.engine in (None, engine) and binary(engine)]
    findings, began = Findings(arguments.seed), time.monotonic()
    whole = not names and arguments.engine is None
    for engine in engines:
        _run(findings, engine, names, arguments.seed, only_what_differs=whole and engine != engines[0])
    findings.seconds = time.monotonic() - began
    text = report.render(findings)
    if whole:
        report.PATH.write_text(text)
        print(f"\n{report.PATH.name} is written.")
    else:
        print("\n" + text)
    for breach in findings.shown:
        print(f"BROKEN: {breach}", file=sys.stderr)
    return 1 if findings.breaches else 0


def _run(findings: Findings, engine: Engine, names: set[str], seed: int, *, only_what_differs: bool) -> None:
    for case in ALL:
        # There is only one kind of embedded server, so it runs once.
        here = case.on_all if only_what_differs else engine == "valkey" or not case.setup.embedded
        if here and _wanted(case.name, names):
            _say(f"{engine:7} {case.name:20}")
            result = asyncio.run(cases.run(case, engine, seed))
            findings.cases.append(result)
            _tell(result)
    if _wanted("kill_test", names):
        kill_test = kills.KillTest()
        _say(f"{engine:7} kill_test           ")
        findings.kill_tests.append((kill_test, asyncio.run(kills.run(kill_test, engine, seed))))
        _tell(findings.kill_tests[-1][1])
    if _wanted("order", names):
        skip, stop = order.OrderTest("skip"), order.OrderTest("stop", restart=True)
        for test in (stop,) if only_what_differs else (skip, stop):
            _say(f"{engine:7} {test.what:20}")
            findings.orders.append(asyncio.run(order.run(test, engine, seed)))
            _tell_order(findings.orders[-1])
    if _wanted("ordered_tasks", names):
        for test in order.TASKS if names else order.TASKS[-1:] if only_what_differs else order.TASKS[:1]:
            _say(f"{engine:7} {test.what:20}")
            findings.orders.append(asyncio.run(order.run(test, engine, seed)))
            _tell_order(findings.orders[-1])
    _run_trials(findings, engine, names, seed)
    if only_what_differs:
        return
    if _wanted("ownership", names):
        _say(f"{engine:7} ownership           ")
        findings.ownerships.append(asyncio.run(ownership.run(ownership.OwnershipTest(), engine, seed)))
        _tell_ownership(findings.ownerships[-1])
    if _wanted("outage", names):
        _say(f"{engine:7} outage              ")
        findings.outages.append(asyncio.run(outage.run(engine, seed)))
        print(f"{findings.outages[-1].seconds:5.1f} s", flush=True)
    if _wanted("refusals", names):
        findings.refusals += refusals.run(engine)
    if _wanted("failovers", names):
        _tell_trial(findings, engine, asyncio.run(failovers.run(engine, seed)))


def _run_trials(findings: Findings, engine: Engine, names: set[str], seed: int) -> None:
    """Run trials that mostly wait at the same time, and the others one after another."""

    async def at_once() -> list[TrialResult]:
        begun: list[Coroutine[Any, Any, TrialResult]] = []
        if _wanted("busy", names):
            begun.append(busy.run(busy.BusyTest(), engine, seed))
        if _wanted("idle", names):
            begun.append(idle.run(idle.IdleTest(), engine, seed))
        if _wanted("fleet", names):
            begun.append(fleet.run(fleet.FleetTest(), engine, seed))
        return await asyncio.gather(*begun)

    for result in asyncio.run(at_once()):
        _tell_trial(findings, engine, result)
    if _wanted("lost_calls", names):
        _tell_trial(findings, engine, asyncio.run(lost_calls.run(lost_calls.LostCallsTest(), engine, seed)))
    if _wanted("storm", names):
        _tell_trial(findings, engine, asyncio.run(storm.run(storm.TESTS[engine], engine, seed)))


def _wanted(name: str, names: set[str]) -> bool:
    return not names or name in names


def _say(what: str) -> None:
    print(f"  {what} ", end="", flush=True)


def _tell(result: Result) -> None:
    if result.skipped:
        print(f"skipped: {result.skipped}", flush=True)
        return
    v = result.verdict
    print(
        f"{result.seconds:5.1f} s  {v.accepted:6,} accepted, {v.done:6,} done, {len(v.lost)} lost, "
        f"{v.twice.total():3} second runs, recovery {v.longest:.2f} s"
        f"{'  BROKEN' if v.breaches else ''}",
        flush=True,
    )
    _tell_breaches(v.breaches, result.logs)


def _tell_trial(findings: Findings, engine: Engine, result: TrialResult) -> None:
    findings.trials.append(result)
    kept, v = sum(each.kept for each in result.expectations), result.verdict
    _say(f"{engine:7} {result.name:20}")
    print(
        f"{result.seconds:5.1f} s  {v.accepted:6,} accepted, {v.done:6,} done, {len(v.lost)} lost, {kept} of "
        f"{len(result.expectations)} expectations met{'  BROKEN' if result.breaches else ''}",
        flush=True,
    )
    _tell_breaches(result.breaches, result.logs)


def _tell_order(result: order.OrderResult) -> None:
    v = result.verdict
    strikes = ", ".join(f"{count} {what}" for what, count in result.strikes.items())
    print(
        f"{result.seconds:5.1f} s  {v.published:6,} published, {v.done:6,} done, {v.dead.total()} dead, {v.cleared.total()} "
        f"replayed from {result.keys_cleared} stopped keys, {v.retries:,} retries, {strikes}, {result.moves} shard moves, "
        f"longest time without an owner {result.unowned:.2f} s{'  BROKEN' if result.breaches else ''}",
        flush=True,
    )
    _tell_breaches(result.breaches, result.logs)


def _tell_ownership(result: ownership.OwnershipResult) -> None:
    v = result.verdict
    print(
        f"{result.seconds:5.1f} s  {v.published:6,} published, {v.done:6,} done, {result.looks:,} samples, {result.moves} "
        f"shard moves, longest time without an owner {max((step.unowned for step in result.steps), default=0.0):.2f} s"
        f"{'  BROKEN' if result.breaches else ''}",
        flush=True,
    )
    _tell_breaches(result.breaches, result.logs)


def _tell_breaches(breaches: list[str], said: str) -> None:
    for breach in breaches[:5]:
        print(f"      {breach}", flush=True)
    if said:
        with tempfile.NamedTemporaryFile("w", prefix="chaos-", suffix=".log", delete=False) as logs:
            logs.write(said)
        print(f"      the workers' logs are in {logs.name}", flush=True)


def _arguments() -> argparse.Namespace:
    known = [*(case.name for case in ALL), *TRIALS]
    parser = argparse.ArgumentParser(prog="make chaos ARGS=", description="Run workers and servers under every known fault.")
    parser.add_argument("names", nargs="*", metavar="CASE", help=f"only these: {', '.join(known)}")
    parser.add_argument("--engine", choices=get_args(Engine), help="run only on this server; default: all installed servers")
    parser.add_argument("--seed", type=int, default=1, help="random seed for victims and times; default 1")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(known))
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}; the cases are {', '.join(known)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
