"""When a failed job runs again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from millstream import Retry, RetryPolicy
from millstream.errors import UsageError
from millstream.model.policy import as_policy


def full() -> float:
    return 1.0


def none() -> float:
    return 0.0


def test_fixed_waits_are_all_the_same() -> None:
    policy = RetryPolicy(delay=3, backoff="fixed", jitter=False)
    assert [policy.wait(n, full) for n in (1, 2, 9)] == [3, 3, 3]


def test_linear_waits_grow_by_the_delay() -> None:
    policy = RetryPolicy(delay=3, backoff="linear", jitter=False)
    assert [policy.wait(n, full) for n in (1, 2, 3)] == [3, 6, 9]


def test_exponential_waits_double() -> None:
    policy = RetryPolicy(delay=2, jitter=False)
    assert [policy.wait(n, full) for n in (1, 2, 3, 4)] == [2, 4, 8, 16]


def test_no_wait_exceeds_max_delay() -> None:
    policy = RetryPolicy(delay=2, max_delay=10)
    assert all(policy.wait(n, full) <= 10 for n in range(1, 200))


@pytest.mark.parametrize("backoff", ["fixed", "linear", "exponential"])
def test_the_wait_before_attempt_2000_does_not_exceed_max_delay(backoff: str) -> None:
    policy = RetryPolicy(5000, delay=600, max_delay=86_400, backoff=backoff, jitter=False)  # type: ignore[arg-type]
    assert 0 < policy.wait(2000, full) <= 86_400


def test_jitter_spreads_over_the_upper_half() -> None:
    policy = RetryPolicy(delay=8, backoff="fixed")
    assert (policy.wait(1, none), policy.wait(1, full)) == (4, 8)


def test_explicit_delays_are_used_exactly_and_the_last_delay_repeats() -> None:
    policy = RetryPolicy(delays=[1, 5, 30], max_delay=2)
    assert [policy.wait(n, none) for n in (1, 2, 3, 4, 2000)] == [1, 5, 30, 30, 30]


def test_only_exceptions_in_on_and_not_in_never_on_are_retried() -> None:
    policy = RetryPolicy(on=(LookupError,), never_on=(KeyError,))
    assert policy.retries(IndexError())
    assert not policy.retries(KeyError())
    assert not policy.retries(ValueError())


def test_a_raised_retry_is_always_retried() -> None:
    assert RetryPolicy(on=(LookupError,)).retries(Retry())


def test_a_policy_sent_with_a_call_matches_the_same_exceptions() -> None:
    policy = RetryPolicy.from_rule(RetryPolicy(3, delay=1.5, on=(LookupError,), never_on=(KeyError,)).to_rule())
    assert (policy.max_retries, policy.delay) == (3, 1.5)
    assert policy.retries(IndexError())
    assert not policy.retries(KeyError())


def test_a_number_changes_only_the_retry_count() -> None:
    base = RetryPolicy(8, delay=7)
    assert as_policy(2, base) == RetryPolicy(2, delay=7)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_retries": -1}, "-1"),
        ({"max_retries": True}, "True"),
        ({"delay": -2.0}, "-2.0"),
        ({"delay": float("nan")}, "nan"),
        ({"max_delay": float("inf")}, "inf"),
        ({"backoff": "cubic"}, "cubic"),
        ({"delays": []}, "delays"),
        ({"delays": [1, -1]}, "-1"),
        ({"delays": 5}, "takes a sequence of delays, like .*, not 5"),
        ({"on": (3,)}, "3"),
        ({"never_on": 3}, "takes exception classes, not 3"),
    ],
)
def test_an_invalid_policy_is_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        RetryPolicy(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [Retry(), Retry, "3", 2.5, True, None])
def test_a_retry_option_takes_a_policy_or_a_count(value: object) -> None:
    with pytest.raises(UsageError, match="RetryPolicy"):
        as_policy(value, RetryPolicy())


def test_durations_may_be_timedeltas() -> None:
    policy = RetryPolicy(delay=timedelta(seconds=3), max_delay=timedelta(minutes=1), jitter=False)
    assert policy == RetryPolicy(delay=3, max_delay=60, jitter=False)
    assert policy.wait(2, lambda: 0.0) == 6.0
    ladder = RetryPolicy(delays=[timedelta(seconds=1), 5])
    assert [ladder.wait(attempt, lambda: 0.0) for attempt in (1, 2, 3)] == [1.0, 5.0, 5.0]
    assert RetryPolicy.from_rule(ladder.to_rule()).delays == (1.0, 5.0)
    with pytest.raises(UsageError, match="max_delay"):
        RetryPolicy(max_delay=timedelta(seconds=-1))


def test_retry_timeouts_is_sent_with_a_call() -> None:
    policy = RetryPolicy(retry_timeouts=False)
    assert not RetryPolicy.from_rule(policy.to_rule()).retry_timeouts
    with pytest.raises(UsageError, match="retry_timeouts"):
        RetryPolicy(retry_timeouts=cast(Any, "no"))


def test_a_single_exception_needs_no_tuple() -> None:
    by_class = RetryPolicy(on=KeyError)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert by_class.on == (KeyError,)
    assert RetryPolicy(on="builtins.KeyError").on == ("builtins.KeyError",)
