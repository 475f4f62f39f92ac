"""The order checker finds planted faults: a swapped pair, a lost event, an overlap within a key, a run after a stop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chaos.history import Fault, How
from chaos.order import Course, Death, Handling, OrderVerdict, judge_order

ONE, TWO = 101, 102
"""Worker processes."""


def handled(
    event: str, began: float, ended: float | None = None, how: How = "end", *, pid: int = ONE, attempt: int = 1, epoch: int = 1
) -> Handling:
    key = event.partition("/")[0]
    return Handling(event, key, pid, attempt, began, ended, "cut" if ended is None else how, epoch=epoch)


def verdict(
    events: str, handlings: Sequence[Handling], *faults: Fault, deaths: Sequence[Death] = (), stop: bool = False, left: int = 0
) -> OrderVerdict:
    published: dict[str, list[str]] = {}
    for event in events.split():
        published.setdefault(event.partition("/")[0], []).append(event)
    return judge_order(Course(published, handlings, deaths, faults), stop=stop, left=left)


def breach(judged: OrderVerdict) -> str:
    (only,) = judged.breaches
    return only


def killed(pid: int, at: float) -> Fault:
    return Fault("kill", at, at, (pid,), kills=True)


def test_a_correct_history_has_no_breach() -> None:
    judged = verdict(
        "a/1 a/2 b/1 a/3 b/2",
        [
            handled("a/1", 1, 2),
            handled("b/1", 1.5, 2.5, "failed"),
            handled("a/2", 2, 3, "failed"),
            handled("b/1", 3, 4, attempt=2),
            handled("a/2", 3.5, 4, pid=TWO, attempt=2, epoch=2),
            handled("a/3", 4, 5, pid=TWO, epoch=2),
            handled("b/2", 5, 6, pid=TWO, epoch=2),
        ],
    )
    assert (judged.published, judged.done, judged.retries, judged.again, judged.breaches) == (5, 5, 2, 0, [])


def test_a_swapped_pair_is_found() -> None:
    judged = verdict("a/1 a/2 a/3", [handled("a/1", 1, 2), handled("a/3", 2, 3), handled("a/2", 3, 4)])
    assert breach(judged) == "a: a/3 was done before a/2, which was published earlier"


def test_a_swapped_pair_among_thousands_is_found() -> None:
    events = [f"k{n % 50}/{n // 50}" for n in range(5_000)]
    handlings = [handled(event, n, n + 1) for n, event in enumerate(events)]
    assert verdict(" ".join(events), handlings).breaches == []
    handlings[2_000], handlings[2_050] = handled("k0/41", 2_000, 2_001), handled("k0/40", 2_050, 2_051)
    assert breach(verdict(" ".join(events), handlings)) == "k0: k0/41 was done before k0/40, which was published earlier"


def test_an_event_that_starts_while_its_predecessor_waits_for_a_retry_is_found() -> None:
    history = [handled("a/1", 1, 2, "failed"), handled("a/2", 2.5, 3, "failed"), handled("a/1", 4, 5, attempt=2)]
    judged = verdict("a/1 a/2", [*history, handled("a/2", 5, 6, attempt=2)])
    assert breach(judged) == "a: a/2 began 2.500 s before the end of a/1, which was published earlier"


def test_there_is_no_order_between_keys() -> None:
    judged = verdict("a/1 b/1", [handled("b/1", 1, 5), handled("a/1", 2, 3)])
    assert judged.breaches == []


def test_a_lost_event_is_found() -> None:
    assert "a/2 is lost" in breach(verdict("a/1 a/2 a/3", [handled("a/1", 1, 2), handled("a/3", 2, 3)]))


def test_an_event_whose_only_run_was_interrupted_or_failed_is_lost() -> None:
    assert "a/1 is lost" in breach(verdict("a/1", [handled("a/1", 1)], killed(ONE, 2)))
    assert "a/1 is lost" in breach(verdict("a/1", [handled("a/1", 1, 2, "failed")]))


def test_a_dead_event_is_not_lost_and_the_next_event_of_its_key_may_run() -> None:
    history = [handled("a/1", 1, 2, "failed"), handled("a/1", 3, 4, "failed", attempt=2), handled("a/2", 4, 5)]
    judged = verdict("a/1 a/2", history, deaths=[Death("a/1", "exhausted")])
    assert (judged.done, judged.dead, judged.breaches) == (1, {"exhausted": 1}, [])


def test_unpublished_and_leftover_events_are_found() -> None:
    assert "a/9 was handled" in breach(verdict("", [handled("a/9", 1, 2)]))
    assert "3 events are still on the server" in breach(verdict("", [], left=3))


# -- one at a time ---------------------------------------------------------------------------------------------------------


def test_an_overlap_is_found() -> None:
    judged = verdict("a/1 a/2", [handled("a/1", 1, 3), handled("a/2", 2, 4, pid=TWO)])
    assert judged.breaches == [
        "a: a/2 began 1.000 s before the end of a/1, which was published earlier",
        f"a: two at a time: process {ONE} was handling a/1 when process {TWO} began a/2",
    ]


def test_two_simultaneous_runs_of_one_event_are_an_overlap() -> None:
    assert "two at a time" in breach(verdict("a/1", [handled("a/1", 1, 3), handled("a/1", 2, 2.5, "failed", pid=TWO)]))


def test_a_run_of_a_killed_process_ends_with_the_process() -> None:
    judged = verdict("a/1 a/2", [handled("a/1", 1), handled("a/1", 3, 4, pid=TWO), handled("a/2", 4, 5)], killed(ONE, 2))
    assert judged.breaches == []
    early = [handled("a/1", 1), handled("a/1", 1.5, 1.8, pid=TWO)]
    assert "two at a time" in breach(verdict("a/1", early, killed(ONE, 2)))
    assert "two at a time" in breach(verdict("a/1", early, killed(TWO, 2)))


def test_a_late_run_of_a_suspended_process_is_not_an_overlap() -> None:
    stopped = Fault("stop", 1, 9, (ONE,), fences=True)
    late = [handled("a/1", 0, 9.2), handled("a/1", 6, 7, pid=TWO), handled("a/2", 7, 9.3, pid=TWO)]
    assert verdict("a/1 a/2", late, stopped).breaches == []
    about_to = [handled("a/1", 6, 7, pid=TWO), handled("a/2", 7, 9.3, pid=TWO), handled("a/1", 9.01, 9.2, "broken")]
    assert verdict("a/1 a/2", about_to, stopped).breaches == []


def test_a_second_run_of_a_done_event_needs_a_fault_that_explains_it() -> None:
    twice = [handled("a/1", 1, 2), handled("a/1", 4, 5, pid=TWO)]
    judged = verdict("a/1", twice, killed(ONE, 2.1))
    assert (judged.again, judged.breaches) == (1, [])
    for fault in (killed(TWO, 2.1), killed(ONE, 60)):
        assert "a/1 was done and handled again" in breach(verdict("a/1", twice, fault))


# -- stops -----------------------------------------------------------------------------------------------------------------

STOPPED = [Death("a/2", "rejected"), Death("a/3", "stopped"), Death("a/4", "stopped")]
BEFORE = [handled("a/1", 1, 2), handled("a/2", 2, 3, "failed")]


def test_after_a_stop_the_following_events_of_the_key_are_dead_and_other_keys_continue() -> None:
    judged = verdict("a/1 a/2 a/3 a/4 b/1", [*BEFORE, handled("b/1", 5, 6)], deaths=STOPPED, stop=True)
    assert (judged.dead, judged.breaches) == ({"rejected": 1, "stopped": 2}, [])


def test_a_run_after_a_stop_is_found() -> None:
    judged = verdict("a/1 a/2 a/3 a/4", [*BEFORE, handled("a/4", 5, 6)], deaths=STOPPED[:2], stop=True)
    assert breach(judged) == "a: a/4 started although the death of a/2 had stopped the key"


def test_an_event_after_a_stop_that_is_not_dead_is_lost() -> None:
    assert "a/4 is lost" in breach(verdict("a/1 a/2 a/3 a/4", BEFORE, deaths=STOPPED[:2], stop=True))


def test_after_a_clear_all_events_of_the_key_run_in_order() -> None:
    cleared = [death._replace(cleared=10.0) for death in STOPPED]
    after = [handled("a/2", 11, 12), handled("a/3", 12, 13), handled("a/4", 13, 14), handled("a/5", 14, 15)]
    judged = verdict("a/1 a/2 a/3 a/4 a/5", [*BEFORE, *after], deaths=cleared, stop=True)
    assert (judged.done, judged.dead, judged.cleared, judged.breaches) == (5, {}, {"rejected": 1, "stopped": 2}, [])
    early = [handled("a/2", 9, 9.5), *after[1:]]
    assert verdict("a/1 a/2 a/3 a/4 a/5", [*BEFORE, *early], deaths=cleared, stop=True).breaches == []
    early = [after[0], handled("a/3", 12, 13), handled("a/5", 9, 9.5), handled("a/4", 13, 14)]
    judged = verdict("a/1 a/2 a/3 a/4 a/5", [*BEFORE, *early], deaths=cleared, stop=True)
    assert "a: a/5 started although the death of a/2 had stopped the key" in judged.breaches


def test_a_stopped_dead_letter_without_a_stop_is_found() -> None:
    judged = verdict("a/1 a/2", [handled("a/1", 1, 2)], deaths=[Death("a/2", "stopped")], stop=True)
    assert "nothing had stopped the key" in breach(judged)
    judged = verdict("a/2 a/3", BEFORE[1:], deaths=STOPPED[:2], stop=False)
    assert "nothing had stopped the key" in breach(judged)


def test_a_death_for_another_reason_after_a_stop_is_found() -> None:
    deaths = [Death("a/2", "rejected"), Death("a/3", "crashed")]
    assert "a/3 is dead (crashed) although" in breach(verdict("a/1 a/2 a/3", BEFORE, deaths=deaths, stop=True))


# -- outages ---------------------------------------------------------------------------------------------------------------


def test_a_kill_long_after_a_run_explains_a_second_run_only_after_an_outage() -> None:
    again = [handled("a/1", 1, 2), handled("a/1", 9, 10, pid=TWO)]
    assert "nothing explains it" in breach(verdict("a/1", again, killed(ONE, 8)))
    away = Fault("away", 2.5, 7.5, away=True)
    assert verdict("a/1", again, killed(ONE, 8), away).breaches == []
    assert "nothing explains it" in breach(verdict("a/1", again, killed(ONE, 8), Fault("away", 5, 7.5, away=True)))


# -- owners ----------------------------------------------------------------------------------------------------------------


def test_epochs_of_a_shard_only_increase() -> None:
    rising = [handled("a/1", 1, 2, epoch=3), handled("b/1", 2, 3, pid=TWO, epoch=4)]
    assert verdict("a/1 b/1", rising).breaches == []
    falling = [handled("a/1", 1, 2, epoch=4), handled("b/1", 2, 3, pid=TWO, epoch=3)]
    assert "under epoch 3, after process 101 had owned it under 4" in breach(verdict("a/1 b/1", falling))
    apart = [falling[0], falling[1]._replace(shard=1)]
    assert verdict("a/1 b/1", apart).breaches == []


@pytest.mark.parametrize("excused", [True, False])
def test_a_process_that_runs_a_suspect_alone_does_not_own_the_shard(excused: bool) -> None:
    history = [handled("a/1", 1, 2, epoch=4)._replace(owning=not excused), handled("b/1", 2, 3, pid=TWO, epoch=3)]
    assert bool(verdict("a/1 b/1", history).breaches) is not excused
