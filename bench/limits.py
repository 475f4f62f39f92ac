"""Measures Millstream against its own limits, without other libraries, each on a throwaway server.

    make bench-limits                                    everything, about ten minutes; writes LIMITS.md
    make bench-limits ARGS="--only idle,scripts --rounds 1"

Only a full run writes LIMITS.md. Any other run prints its results.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from alone import report
from alone.blocking import BLOCKING
from alone.delays import DELAYS
from alone.idle import IDLE
from alone.limit import Found, number
from alone.retries import RETRIES
from alone.scripts import SCRIPTS
from alone.sharing import SHARING
from alone.traces import TRACES
from alone.weight import BYTES, CROWD, MEMORY

from contest.roster import BENCH
from contest.server import throwaway_server
from millstream.bench.machine import machine

ALL = {each.name: each for each in (DELAYS, IDLE, SHARING, SCRIPTS, BYTES, MEMORY, TRACES, CROWD, RETRIES, BLOCKING)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure Millstream against its own limits.")
    parser.add_argument("--only", default=",".join(ALL), metavar="NAME,…", help=", ".join(ALL))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    names = options.only.split(",")
    for name in names:
        if name not in ALL:
            parser.error(f"unknown measurement {name!r}; the measurements are {', '.join(ALL)}")
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    found = [Found(each) for each in ALL.values() if each.name in names and each.cores <= cores]
    for turn in range(options.rounds):
        for each in found:
            began = time.monotonic()
            figures = each.measurement.measure()
            each.rounds.append(figures)
            told = ", ".join(f"{name} {number(value)}" for name, value in figures.items())
            took = time.monotonic() - began
            print(f"  round {turn + 1}/{options.rounds}  {each.measurement.name:8} {told} [{took:.0f} s]", flush=True)
    print(f"\n{report.table(found)}")
    if len(found) == len(ALL) and options.rounds >= 3:
        with throwaway_server() as server:
            version = server.version
        (BENCH / "LIMITS.md").write_text(report.render(found, machine(), version, load, options.rounds))
        print("\nwritten: LIMITS.md")
    return 0 if all(each.met(limit) for each in found for limit in each.measurement.limits) else 1


if __name__ == "__main__":
    sys.exit(main())
