"""Two backends run through the same random histories and must look the same after every step.

``MILLSTREAM_MODEL_STEPS`` is the minimum number of steps. ``MILLSTREAM_MODEL_SERVER=redis`` uses Redis instead of Valkey.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import pytest
from hypothesis import Phase

from millstream.backends.memory import MemoryBroker
from millstream.backends.memory.queue import MemoryQueue
from millstream.backends.memory.topic import MemoryTopic
from millstream.backends.redis import RedisBroker
from tests.contract.machine import bugs
from tests.contract.machine.backends import BackendPair
from tests.contract.machine.owners import TwoOwners, TwoTopicOwners
from tests.contract.machine.queue import TwoBackends
from tests.contract.machine.topic import TwoTopics
from tests.contract.machine.walk import walk

# total number of steps, unless the environment sets another
TOTAL_STEPS = 1500

# number of steps within which a planted bug must be found
ENOUGH = 30_000

OPTIONS: dict[str, Any] = {"id_ttl": 1e6, "dead_max_age": 60.0, "dead_max_count": 4}

HISTORIES: dict[str, type[BackendPair]] = {
    "queue": TwoBackends,
    "topic": TwoTopics,
    "owners": TwoOwners,
    "topic-owners": TwoTopicOwners,
}


def memory() -> MemoryBroker:
    return MemoryBroker(**OPTIONS)


@pytest.mark.parametrize("histories", HISTORIES)
def test_the_redis_backend_behaves_as_the_memory_backend(histories: str, request: pytest.FixtureRequest) -> None:
    server = "redis_server" if os.environ.get("MILLSTREAM_MODEL_SERVER") == "redis" else "valkey_server"
    url = request.getfixturevalue(server)

    def redis() -> RedisBroker:
        return RedisBroker(url, namespace=f"model-{uuid.uuid4().hex}", **OPTIONS)

    steps = int(os.environ.get("MILLSTREAM_MODEL_STEPS", TOTAL_STEPS))
    walked = walk(memory, redis, steps, HISTORIES[histories])
    assert walked >= steps, server  # a difference between the two raises before this line


# -- planted bugs ----------------------------------------------------------------------------------------------------------

IN_QUEUES = (
    bugs.Unfenced,
    bugs.Hasty,
    bugs.Resentful,
    bugs.Presumptuous,
    bugs.Grudging,
    bugs.Giddy,
    bugs.Backward,
    bugs.Narrow,
    bugs.Amnesiac,
    bugs.Oblivious,
    bugs.Generous,
    bugs.Clinging,
    bugs.Unforgiving,
)


@pytest.mark.parametrize("rules", IN_QUEUES, ids=lambda rules: rules.__name__)
def test_a_planted_bug_is_found(rules: type[MemoryQueue]) -> None:
    class Buggy(MemoryBroker):
        _rules = rules

    with pytest.raises(AssertionError):
        walk(memory, lambda: Buggy(**OPTIONS), ENOUGH, TwoBackends, phases=[Phase.generate], derandomize=True)


@pytest.mark.parametrize("rules", [bugs.Crowded, bugs.Level, bugs.Backward], ids=lambda rules: rules.__name__)
def test_a_planted_bug_in_the_ownership_of_shards_is_found(rules: type[MemoryQueue]) -> None:
    class Buggy(MemoryBroker):
        _rules = rules

    with pytest.raises(AssertionError):
        walk(memory, lambda: Buggy(**OPTIONS), ENOUGH, TwoOwners, phases=[Phase.generate], derandomize=True)


@pytest.mark.parametrize("rules", [bugs.Crowded, bugs.Backward], ids=lambda rules: rules.__name__)
def test_the_invariants_of_ownership_find_a_bug_without_a_second_backend(rules: type[MemoryQueue]) -> None:
    class Buggy(MemoryBroker):
        _rules = rules

    with pytest.raises(AssertionError):
        walk(lambda: Buggy(**OPTIONS), lambda: Buggy(**OPTIONS), ENOUGH, TwoOwners, phases=[Phase.generate], derandomize=True)


@pytest.mark.parametrize("rules", [bugs.Oblivious, bugs.Clinging], ids=lambda rules: rules.__name__)
def test_an_id_that_is_free_too_early_or_too_late_is_found_without_a_second_backend(rules: type[MemoryQueue]) -> None:
    class Buggy(MemoryBroker):
        _rules = rules

    with pytest.raises(AssertionError):
        walk(lambda: Buggy(**OPTIONS), lambda: Buggy(**OPTIONS), ENOUGH, TwoBackends, phases=[Phase.generate], derandomize=True)


@pytest.mark.parametrize("topics", [bugs.Impatient, bugs.Partial, bugs.Forgetful], ids=lambda topics: topics.__name__)
def test_a_planted_bug_in_a_topic_is_found(topics: type[MemoryTopic]) -> None:
    class Buggy(MemoryBroker):
        _topics = topics

    with pytest.raises(AssertionError):
        walk(memory, lambda: Buggy(**OPTIONS), ENOUGH, TwoTopics, phases=[Phase.generate], derandomize=True)
