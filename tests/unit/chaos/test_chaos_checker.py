"""The checker of the chaos suite finds planted faults: a lost job, an unexplained second run, a late recovery."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from chaos.checker import Verdict, judge
from chaos.history import Enqueue, Fate, Fault, History, How, Run

LEASE = 5.0
ONE, TWO, THREE = 101, 102, 103
"""Worker processes."""


def sent(key: str, fate: Fate = "accepted", at: float = 0.0) -> Enqueue:
    return Enqueue(key, f"id-{key}", fate, at)


def ran(
    key: str, pid: int, began: float, ended: float | None = None, how: How = "end", *, attempt: int = 1, crashes: int = 0
) -> Run:
    return Run(key, f"id-{key}", pid, attempt, crashes, began, ended, "cut" if ended is None else how)


def verdict(
    enqueues: Iterable[Enqueue], runs: Iterable[Run], *faults: Fault, dead: dict[str, str] | None = None, left: int = 0
) -> Verdict:
    return judge(History(list(enqueues), list(runs), list(faults)), lease=LEASE, dead=dead or {}, left=left)


def breach(judged: Verdict) -> str:
    (only,) = judged.breaches
    return only


def killed(pid: int, at: float, *held: str) -> Fault:
    return Fault("kill", at, at, (pid,), kills=True, held=held)


# -- nothing is lost -------------------------------------------------------------------------------------------------------


def test_a_healthy_history_has_no_breach() -> None:
    judged = verdict([sent("a"), sent("b")], [ran("a", ONE, 1, 2), ran("b", TWO, 1, 2)])
    assert (judged.accepted, judged.done, judged.lost, judged.twice.total(), judged.breaches) == (2, 2, [], 0, [])


def test_an_accepted_job_that_never_ran_is_lost() -> None:
    judged = verdict([sent("a"), sent("b")], [ran("a", ONE, 1, 2)])
    assert judged.lost == ["b"]
    assert "b is lost" in breach(judged)


def test_an_accepted_job_whose_only_run_was_interrupted_is_lost() -> None:
    judged = verdict([sent("a")], [ran("a", ONE, 1)], killed(ONE, 2))
    assert judged.lost == ["a"]


def test_a_dead_letter_explained_by_a_kill_is_not_lost() -> None:
    judged = verdict([sent("once-1")], [ran("once-1", ONE, 1)], killed(ONE, 2), dead={"id-once-1": "crashed"})
    assert (judged.lost, judged.dead["crashed"], judged.breaches) == ([], 1, [])


def test_an_at_most_once_job_may_be_dead_without_a_run_after_a_kill() -> None:
    assert verdict([sent("once-1")], [], killed(ONE, 2), dead={"id-once-1": "crashed"}).breaches == []
    assert "nothing explains it" in breach(verdict([sent("once-1")], [], dead={"id-once-1": "crashed"}))
    assert "nothing explains it" in breach(verdict([sent("a")], [], killed(ONE, 2), dead={"id-a": "crashed"}))


@pytest.mark.parametrize("reason", ["crashed", "exhausted"])
def test_an_unexplained_dead_letter_is_a_breach(reason: str) -> None:
    judged = verdict([sent("a")], [ran("a", ONE, 1, 2, "broken")], dead={"id-a": reason})
    assert f"a is dead ({reason})" in breach(judged)


def test_a_job_that_succeeded_and_is_also_dead_is_a_breach() -> None:
    judged = verdict([sent("a")], [ran("a", ONE, 1, 2)], killed(ONE, 2), dead={"id-a": "crashed"})
    assert "succeeded but is dead" in breach(judged)


def test_jobs_left_on_the_server_are_a_breach() -> None:
    assert "3 jobs are still on the server" in breach(verdict([], [], left=3))


def test_jobs_lost_by_the_server_itself_are_counted_separately() -> None:
    flushed = Fault("FLUSHALL", 10, 10, loses_since=0)
    judged = verdict([sent("a", at=9), sent("b", at=12)], [], flushed)
    assert (judged.wiped, judged.lost) == (1, ["b"])


def test_a_server_that_lost_its_last_seconds_does_not_excuse_the_loss_of_older_jobs() -> None:
    judged = verdict([sent("a", at=7)], [], Fault("everysec", 10, 11, loses_since=8))
    assert (judged.wiped, judged.lost) == (0, ["a"])


# -- answers to producers --------------------------------------------------------------------------------------------------


def test_the_last_answer_counts_and_repeated_sends_are_counted() -> None:
    judged = verdict([sent("a", "unknown"), sent("a", "unknown"), sent("a")], [ran("a", ONE, 1, 2)])
    assert (judged.sent, judged.accepted, judged.repeated, judged.unknown) == (1, 1, 1, 0)


@pytest.mark.parametrize("runs", [[], [ran("a", ONE, 1, 2)]])
def test_a_job_with_an_unknown_answer_may_have_run_or_not(runs: list[Run]) -> None:
    judged = verdict([sent("a", "unknown")], runs)
    assert (judged.unknown, judged.breaches) == (1, [])


def test_a_refused_job_that_ran_is_a_breach() -> None:
    assert "a ran although it was refused" in breach(verdict([sent("a", "refused")], [ran("a", ONE, 1, 2)]))


def test_a_job_that_ran_but_was_never_sent_is_a_breach() -> None:
    assert "a ran but was never sent" in breach(verdict([], [ran("a", ONE, 1, 2)]))


def test_a_job_published_twice_is_an_unexplained_second_run() -> None:
    again = ran("a", TWO, 3, 4)._replace(job_id="another-id")
    assert "nothing explains it" in breach(verdict([sent("a", "unknown"), sent("a")], [ran("a", ONE, 1, 2), again]))


# -- a job runs once -------------------------------------------------------------------------------------------------------


def test_a_second_run_without_a_fault_is_a_breach() -> None:
    judged = verdict([sent("a")], [ran("a", ONE, 1, 2), ran("a", TWO, 3, 4)])
    assert "a ran twice, and nothing explains it" in breach(judged)


def test_a_second_run_is_explained_by_the_death_of_the_first_process() -> None:
    judged = verdict([sent("a")], [ran("a", ONE, 1), ran("a", TWO, 4, 5)], killed(ONE, 2))
    assert (judged.twice, judged.longest_recovery, judged.breaches) == ({"kill": 1}, 2, [])


def test_a_second_run_is_not_explained_by_the_death_of_another_process() -> None:
    assert "nothing explains it" in breach(verdict([sent("a")], [ran("a", ONE, 1, 2), ran("a", TWO, 4, 5)], killed(TWO, 2)))


def test_a_kill_does_not_explain_a_second_run_that_began_before_it() -> None:
    assert "nothing explains it" in breach(verdict([sent("a")], [ran("a", ONE, 1), ran("a", TWO, 2, 3)], killed(ONE, 4)))


def test_a_kill_does_not_explain_a_first_run_that_began_after_it() -> None:
    assert "nothing explains it" in breach(verdict([sent("a")], [ran("a", ONE, 5, 6), ran("a", TWO, 7, 8)], killed(ONE, 4)))


def test_a_job_claimed_before_the_server_forgot_it_may_start_shortly_afterwards() -> None:
    forgot = Fault("NOGROUP", 3, 4, forgets=True)
    judged = verdict([sent("a")], [ran("a", ONE, 4.5, 6), ran("a", ONE, 5, 6)], forgot)
    assert (judged.twice, judged.breaches) == ({"NOGROUP": 1}, [])
    assert "nothing explains it" in breach(verdict([sent("a")], [ran("a", ONE, 9, 10), ran("a", ONE, 9.5, 10)], forgot))


def test_an_outcome_may_be_lost_if_its_process_dies_right_after_the_run() -> None:
    judged = verdict([sent("a")], [ran("a", ONE, 1, 2), ran("a", TWO, 4, 5)], killed(ONE, 2.1))
    assert (judged.twice.total(), judged.breaches) == (1, [])


def test_a_kill_long_after_a_run_does_not_explain_a_second_run() -> None:
    judged = verdict([sent("a")], [ran("a", ONE, 1, 2), ran("a", TWO, 60, 61)], killed(ONE, 58))
    assert "nothing explains it" in breach(judged)


def test_a_kill_after_an_outage_explains_a_second_run_because_the_outcome_was_not_settled() -> None:
    away = Fault("away", 2, 57, away=True)
    judged = verdict([sent("a")], [ran("a", ONE, 1, 2), ran("a", TWO, 60, 61)], killed(ONE, 58), away)
    assert (judged.twice, judged.breaches) == ({"kill": 1}, [])


def test_an_outage_alone_does_not_explain_a_second_run() -> None:
    away = Fault("away", 1, 30, away=True, restarts=True)
    assert "nothing explains it" in breach(verdict([sent("a")], [ran("a", ONE, 0, 40), ran("a", TWO, 31, 32)], away))


def test_a_suspension_longer_than_the_lease_explains_a_second_run() -> None:
    stopped = Fault("stop", 1, 9, (ONE,), fences=True)
    judged = verdict([sent("a")], [ran("a", ONE, 0, 9.5, "broken"), ran("a", TWO, 8, 8.5, crashes=1)], stopped)
    assert (judged.twice, judged.breaches) == ({"stop": 1}, [])


def test_a_suspension_shorter_than_the_lease_does_not_explain_a_second_run() -> None:
    stopped = Fault("stop", 1, 4, (ONE,), fences=True)
    assert "nothing explains it" in breach(verdict([sent("a")], [ran("a", ONE, 0, 4.5), ran("a", TWO, 4.2, 5)], stopped))


def test_a_suspended_process_may_only_start_the_job_it_was_about_to_start() -> None:
    stopped = Fault("stop", 1, 9, (ONE,), fences=True)
    judged = verdict([sent("a")], [ran("a", TWO, 8, 8.5, crashes=1), ran("a", ONE, 9.01, 9.05, "broken")], stopped)
    assert (judged.twice, judged.breaches) == ({"stop": 1}, [])
    judged = verdict([sent("a")], [ran("a", TWO, 8, 8.5, crashes=1), ran("a", ONE, 9.5, 9.6, "broken")], stopped)
    assert "nothing explains it" in breach(judged)


def test_a_process_that_was_not_suspended_may_not_start_a_job_late() -> None:
    stopped = Fault("stop", 1, 9, (ONE,), fences=True)
    judged = verdict([sent("a")], [ran("a", TWO, 8, 8.5, crashes=1), ran("a", THREE, 9.01, 9.05)], stopped)
    assert "nothing explains it" in breach(judged)


def test_a_retry_does_not_count_as_a_second_run() -> None:
    judged = verdict([sent("a")], [ran("a", ONE, 1, 2, "failed"), ran("a", TWO, 3, 4, attempt=2)])
    assert (judged.twice.total(), judged.breaches) == (0, [])


def test_a_second_attempt_without_a_failure_is_a_second_run() -> None:
    assert "nothing explains it" in breach(verdict([sent("a")], [ran("a", ONE, 1, 2), ran("a", TWO, 3, 4, attempt=2)]))


def test_a_run_after_a_snooze_does_not_count_as_a_second_run() -> None:
    judged = verdict([sent("a")], [ran("a", ONE, 1, 2, "snoozed"), ran("a", TWO, 3, 4)])
    assert (judged.twice.total(), judged.breaches) == (0, [])


def test_a_later_run_without_a_snooze_is_a_second_run() -> None:
    assert "nothing explains it" in breach(verdict([sent("a")], [ran("a", ONE, 1, 2, "broken"), ran("a", TWO, 3, 4)]))


def test_deleted_leases_explain_second_runs_only_of_jobs_that_were_running() -> None:
    lost = Fault("lost leases", 2, 3, fences=True, forgets=True)
    judged = verdict([sent("a")], [ran("a", ONE, 1, 5), ran("a", TWO, 4, 5)], lost)
    assert (judged.twice, judged.breaches) == ({"lost leases": 1}, [])
    assert "nothing explains it" in breach(verdict([sent("a")], [ran("a", ONE, 9, 10), ran("a", TWO, 11, 12)], lost))


def test_a_failover_does_not_explain_a_second_run() -> None:
    failover = Fault("failover", 2, 3, away=True, restarts=True)
    assert "nothing explains it" in breach(verdict([sent("a")], [ran("a", ONE, 1, 5), ran("a", TWO, 4, 5)], failover))


def test_an_at_most_once_job_that_started_twice_is_a_breach_even_after_a_kill() -> None:
    judged = verdict([sent("once-1")], [ran("once-1", ONE, 1), ran("once-1", TWO, 4, 5)], killed(ONE, 2))
    assert "may start only once" in breach(judged)


def test_two_starts_of_an_at_most_once_job_are_excused_if_the_server_forgot_the_first() -> None:
    forgot = Fault("NOGROUP", 3, 4, forgets=True, forgets_starts=True)
    leases = Fault("lost leases", 3.5, 4.5, fences=True, forgets=True)
    runs = [ran("once-1", ONE, 3.6, 6), ran("once-1", ONE, 3.7, 6)]
    assert verdict([sent("once-1")], runs, forgot).breaches == []
    assert verdict([sent("once-1")], runs, forgot, leases).breaches == []
    assert "may start only once" in breach(verdict([sent("once-1")], runs, leases))


# -- recovery time ---------------------------------------------------------------------------------------------------------


def test_a_recovery_slower_than_the_lease_plus_two_seconds_is_a_breach() -> None:
    judged = verdict([sent("a")], [ran("a", ONE, 1), ran("a", TWO, 9.5, 10)], killed(ONE, 2))
    assert "ran 7.5 s after kill" in breach(judged)


def test_a_recovery_around_a_restart_may_take_two_leases() -> None:
    restarted = Fault("restart", 3, 4, away=True, restarts=True)
    judged = verdict([sent("a")], [ran("a", ONE, 1), ran("a", TWO, 9.5, 10)], killed(ONE, 2), restarted)
    assert (judged.longest_recovery, judged.longest_around_restart, judged.breaches) == (0, 7.5, [])


def test_a_job_that_was_held_but_not_started_must_recover_too() -> None:
    judged = verdict([sent("a")], [ran("a", TWO, 20, 21)], killed(ONE, 2, "id-a"))
    assert "a ran 18.0 s after kill" in breach(judged)


def test_the_recovery_time_restarts_when_the_second_process_is_killed_too() -> None:
    judged = verdict([sent("a")], [ran("a", TWO, 13, 14)], killed(ONE, 2, "id-a"), killed(THREE, 7, "id-a"))
    assert (judged.longest_recovery, judged.breaches) == (6, [])


def test_a_job_killed_twice_runs_alone_and_may_recover_later() -> None:
    twice = [ran("a", ONE, 1), ran("a", TWO, 3, crashes=1), ran("a", THREE, 12, 13, crashes=2)]
    judged = verdict([sent("a")], twice, killed(ONE, 2), killed(TWO, 4))
    assert (judged.longest_recovery, judged.longest_alone, judged.breaches) == (1, 8, [])


def test_the_pause_after_an_outage_is_measured() -> None:
    judged = verdict([sent("a")], [ran("a", ONE, 31.5, 32)], Fault("away", 1, 30, away=True))
    assert judged.longest_pause == 1.5
