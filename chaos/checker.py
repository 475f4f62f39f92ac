"""The checker compares a history with the promises. It does no I/O. Its tests plant lost jobs and second runs.

- No accepted job is lost: it succeeded, or is a dead letter, or the server lost its own data (and a fault says so).
- A job runs once. A second run needs an explanation: a fault struck the process of the first run while it ran, or before its
  outcome can have reached the server. Any other second run is a breach.
- A refused job never runs, and neither does a job that was never sent. An at-most-once job never runs twice.
- The jobs of a killed process run elsewhere within a lease and 2 s. If the server restarted in that time, within two leases,
  2 s and the outage. A job whose processes were killed twice is a suspect and runs alone, in a process started for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from chaos.history import Enqueue, Fault, History, Run

SETTLE_SECONDS = 2.0
"""An older outcome has reached a server that was reachable all the time, on any machine that runs this suite."""

BUFFER_SECONDS = 2.0
"""A job that was claimed longer ago has started or was released, on any machine that runs this suite."""

ABOUT_TO_BEGIN_SECONDS = 0.1
"""A stopped process that continues starts the job it was about to start within this time."""

RECOVERY_SECONDS = 2.0
"""Time allowed beyond the lease until the jobs of a dead worker run elsewhere."""

ALONE_SECONDS = 5.0
"""Time allowed to start a process for suspects and to run the earlier ones."""

HEARD_SECONDS = 1.0
"""The most time between the server's answer and its line in the ledger."""

AT_MOST_ONCE = "once"
"""The key prefix of at-most-once jobs."""


@dataclass
class Verdict:
    """The outcome of every job of a case."""

    sent: int = 0
    accepted: int = 0
    unknown: int = 0
    """Jobs whose last answer was that their fate is unknown: they may have run once, or not at all."""
    refused: int = 0
    repeated: int = 0
    """Jobs accepted after an enqueue whose fate was unknown."""
    done: int = 0
    dead: Counter[str] = field(default_factory=Counter[str])
    """Dead letters by reason."""
    wiped: int = 0
    """Accepted jobs that the server lost with its own data."""
    lost: list[str] = field(default_factory=list[str])
    twice: Counter[str] = field(default_factory=Counter[str])
    """Second runs by the fault that explains them."""
    longest_recovery: float = 0.0
    """Seconds from a kill until the last job of the dead process ran elsewhere, with the server reachable all the time."""
    longest_around_restart: float = 0.0
    """The same if the server restarted in that time."""
    longest_alone: float = 0.0
    """The same for jobs whose processes were killed twice."""
    longest_pause: float = 0.0
    """Seconds from the end of an outage until a handler started."""
    breaches: list[str] = field(default_factory=list[str])
    """Broken promises as text. Empty if the case passed."""

    @property
    def longest(self) -> float:
        """The longest of all these times."""
        return max(self.longest_recovery, self.longest_around_restart, self.longest_alone, self.longest_pause)


def judge(history: History, *, lease: float, dead: Mapping[str, str], left: int = 0, bounded: bool = True) -> Verdict:
    """Judge a history. ``dead`` maps job ids to reasons; ``left`` is the number of jobs still on the server at the end.

    ``bounded``: a recovery that takes too long is a breach.
    """
    return _Judge(history, lease, dead, bounded).judge(left)


class _Judge:
    def __init__(self, history: History, lease: float, dead: Mapping[str, str], bounded: bool) -> None:
        self._history = history
        self._lease = lease
        self._dead = dead
        self._bounded = bounded
        self._verdict = Verdict()
        self._runs: defaultdict[str, list[Run]] = defaultdict(list)
        for run in sorted(history.runs, key=lambda run: run.began):
            self._runs[run.key].append(run)
        self._ids: defaultdict[str, set[str]] = defaultdict(set)
        for answer in history.enqueues:
            self._ids[answer.key].add(answer.job_id)
        for run in history.runs:
            self._ids[run.key].add(run.job_id)

    def judge(self, left: int) -> Verdict:
        verdict, fates = self._verdict, self._fates()
        verdict.sent = len(fates)
        verdict.dead = Counter(self._dead.values())
        for key, answer in fates.items():
            self._judge_fate(key, answer)
        for key in self._runs.keys() - fates.keys():
            self._breach(f"{key} ran but was never sent")
        for key, runs in self._runs.items():
            self._judge_runs(key, runs)
        self._judge_recoveries()
        self._judge_pauses()
        if left:
            self._breach(f"{left} jobs are still on the server")
        return verdict

    # -- nothing is lost ---------------------------------------------------------------------------------------------------

    def _fates(self) -> dict[str, Enqueue]:
        answers: defaultdict[str, list[Enqueue]] = defaultdict(list)
        for answer in self._history.enqueues:
            answers[answer.key].append(answer)
        for several in answers.values():
            if several[-1].fate == "accepted" and "unknown" in {answer.fate for answer in several[:-1]}:
                self._verdict.repeated += 1
        return {key: several[-1] for key, several in answers.items()}

    def _judge_fate(self, key: str, answer: Enqueue) -> None:
        verdict, runs = self._verdict, self._runs.get(key, [])
        ended = any(run.how == "end" for run in runs)
        reasons = [self._dead[job_id] for job_id in self._ids[key] if job_id in self._dead]
        match answer.fate:
            case "refused":
                verdict.refused += 1
                if runs or reasons:
                    self._breach(f"{key} ran although it was refused")
                return
            case "unknown":
                verdict.unknown += 1
            case "accepted":
                verdict.accepted += 1
        if ended:
            verdict.done += 1
        elif not reasons and answer.fate == "accepted":
            if any(_took_away(fault, answer) for fault in self._history.faults):
                verdict.wiped += 1
            else:
                verdict.lost.append(key)
                self._breach(f"{key} is lost: it was accepted, {_tale(runs)}")
        for reason in reasons:
            if reason != "crashed" or not self._was_struck(key, runs):
                self._breach(f"{key} is dead ({reason}), and nothing explains it: {_tale(runs)}")
            elif ended and not key.startswith(AT_MOST_ONCE):
                self._breach(f"{key} succeeded but is dead ({reason})")

    def _was_struck(self, key: str, runs: Sequence[Run]) -> bool:
        """Return whether a process that held the job was killed or fenced. A process that had not started the job leaves no
        trace in the ledger. An at-most-once job without a run may therefore be dead after any such fault."""
        faults = [fault for fault in self._history.faults if fault.kills or fault.fences]
        if not runs:
            return key.startswith(AT_MOST_ONCE) and bool(faults)
        return any(run.pid in fault.pids or not fault.pids for run in runs for fault in faults)

    # -- a job runs once ---------------------------------------------------------------------------------------------------

    def _judge_runs(self, key: str, runs: list[Run]) -> None:
        for first, second in pairwise(runs):
            if first.how == "failed" and second.attempt == first.attempt + 1:
                continue  # a retry, as the task's policy says
            if first.how == "snoozed" and second.attempt == first.attempt:
                continue  # a later run, as the handler requested
            reasons = [fault for fault in self._latest_first() if self._explains(fault, first, second)]
            reason = reasons[0] if reasons else None
            if key.startswith(AT_MOST_ONCE) and not any(_forgot_the_start(fault) for fault in reasons):
                self._breach(f"{key} ran twice but may start only once: {_tale(runs)}")
            if reason is None:
                self._breach(f"{key} ran twice, and nothing explains it: {_tale(runs)}")
                continue
            self._verdict.twice[reason.name] += 1
            if reason.kills and first.job_id not in reason.held:
                self._recovered(reason, key, second.began, second.crashes)

    def _latest_first(self) -> list[Fault]:
        return sorted(self._history.faults, key=lambda fault: -fault.began)

    def _explains(self, fault: Fault, first: Run, second: Run) -> bool:
        if fault.loses_since is not None:
            known = first.ended or fault.ended  # the outcome was not written before this
            return first.began <= fault.ended and known >= fault.loses_since and second.began >= fault.began
        if fault.fences and self._began_late(fault, first, second):
            return True
        if fault.pids and first.pid not in fault.pids:
            return False
        # A worker may start a claimed job after the server forgot the claim, because the worker's buffer is not on the server.
        latest = fault.ended + (BUFFER_SECONDS if fault.forgets else 0.0)
        if first.began > latest or second.began < fault.began or not self._unsettled(first, fault):
            return False
        if fault.fences and fault.ended - fault.began > self._lease:
            return second.began >= fault.began + self._lease / 2
        return fault.kills or fault.forgets

    def _began_late(self, fault: Fault, first: Run, second: Run) -> bool:
        """Return whether a fenced process continued and started a job that another worker had taken over. This is allowed only
        for the job it was about to start when it was stopped. For other claimed jobs it asks the server first."""
        came_back = fault.began <= second.began <= fault.ended + ABOUT_TO_BEGIN_SECONDS
        taken_over = first.began >= fault.began + self._lease / 2 and first.crashes > second.crashes
        return (not fault.pids or second.pid in fault.pids) and came_back and taken_over

    def _unsettled(self, run: Run, fault: Fault) -> bool:
        """Return whether the run's outcome may not have reached the server when the fault struck."""
        if run.ended is None or run.ended >= fault.began:
            return True
        away = sum(_overlap(outage, run.ended, fault.began) for outage in self._history.faults if outage.away)
        return fault.began - run.ended - away <= SETTLE_SECONDS

    # -- recovery times ----------------------------------------------------------------------------------------------------

    def _judge_recoveries(self) -> None:
        """Include jobs that a killed process had claimed but not started. Only the server knew them, not the ledger."""
        keys = {job_id: key for key, ids in self._ids.items() for job_id in ids}
        for fault in self._history.faults:
            for job_id in fault.held:
                key = keys.get(job_id, "")
                after = [(run.began, run.crashes) for run in self._runs.get(key, []) if run.began >= fault.began]
                # Another worker may have taken the job over and been killed before it started the job.
                after += [
                    (other.began, 0) for other in self._history.faults if other.began > fault.began and job_id in other.held
                ]
                if after:
                    self._recovered(fault, key, *min(after))

    def _recovered(self, fault: Fault, key: str, at: float, crashes: int) -> None:
        took = at - fault.began
        verdict = self._verdict
        away = sum(_overlap(other, fault.began, at) for other in self._history.faults if other.restarts)
        if crashes > 1:
            bound = 2 * self._lease + ALONE_SECONDS + away
            verdict.longest_alone = max(verdict.longest_alone, took)
        elif away:
            bound = 2 * self._lease + RECOVERY_SECONDS + away
            verdict.longest_around_restart = max(verdict.longest_around_restart, took)
        else:
            bound = self._lease + RECOVERY_SECONDS
            verdict.longest_recovery = max(verdict.longest_recovery, took)
        if self._bounded and took > bound:
            self._breach(f"{key} ran {took:.1f} s after {fault.name}, which is more than {bound:.1f} s")

    def _judge_pauses(self) -> None:
        starts = sorted(run.began for run in self._history.runs)
        for fault in self._history.faults:
            if fault.away:
                after = next((start for start in starts if start >= fault.ended), fault.ended)
                self._verdict.longest_pause = max(self._verdict.longest_pause, after - fault.ended)

    def _breach(self, what: str) -> None:
        self._verdict.breaches.append(what)


def _forgot_the_start(fault: Fault) -> bool:
    """Return whether the server may have lost the record that a job was started."""
    return fault.forgets_starts or fault.loses_since is not None


def _took_away(fault: Fault, answer: Enqueue) -> bool:
    """Return whether the server may have lost this job. The producer may have received its answer a little later."""
    return fault.loses_since is not None and fault.loses_since <= answer.at <= fault.ended + HEARD_SECONDS


def _overlap(fault: Fault, since: float, until: float) -> float:
    return max(0.0, min(fault.ended, until) - max(fault.began, since))


def _tale(runs: list[Run]) -> str:
    """Describe the runs of a job."""
    if not runs:
        return "but never ran"
    zero = runs[0].began
    return "; ".join(
        f"process {run.pid} started it at {run.began - zero:.2f} s (crashes {run.crashes}, attempt {run.attempt}), "
        + ("cut off" if run.ended is None else f"{run.how} at {run.ended - zero:.2f} s")
        for run in runs
    )
