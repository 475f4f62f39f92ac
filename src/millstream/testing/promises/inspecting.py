"""Promises about reading: states, counts, lists of jobs, and dead letters."""

from __future__ import annotations

import time
from typing import Any, cast

import msgspec

from millstream.broker import Entry, JobView, Listed, Post, QueueState
from millstream.broker.values import SUSPECT_AFTER
from millstream.model.address import Address
from millstream.model.ending import Ending, decode_ending, encode_ending
from millstream.model.message import Message, decode_message, encode_message
from millstream.model.outcome import Kind, Outcome
from millstream.testing.backend import DEAD_ENDING, DONE_ENDING, LETTER, START, BackendUnderTest, Promises, outcome, promise

NOTHING = {"published": 0, "done": 0, "retried": 0, "dead": 0, "expired": 0, "cancelled": 0, "released": 0, "lapsed": 0}


async def send(backend: BackendUnderTest, *ids: str, size: int = 0, **fields: Any) -> None:
    """Publish encoded messages, from which a backend can read the id."""
    args = msgspec.Raw(msgspec.msgpack.encode([bytes(size)]))
    posts = [Post(i, encode_message(Message(i, "t", args, 17)), "t", **fields) for i in ids]
    await backend.broker.publish(backend.queue, posts)


async def listed(backend: BackendUnderTest, status: Listed, limit: int = 100) -> list[str]:
    """Return the ids of all jobs in one state, read in pages."""
    found: list[JobView] = []
    while page := await backend.broker.inspector.jobs(
        backend.queue, status, after=found[-1].cursor if found else "", limit=limit
    ):
        assert len(page) <= limit
        assert {view.status for view in page} == {status}
        found += page
    return [view.id for view in found]


async def addresses(backend: BackendUnderTest) -> list[str]:
    """Return the addresses of every known queue and group."""
    found = await backend.broker.inspector.queues()
    for name in await backend.broker.inspector.topics():
        found += [Address.of_group(name, group.name) for group in (await backend.broker.inspector.topic(name)).groups]
    return found


async def view_of(backend: BackendUnderTest, job_id: str) -> JobView:
    view = await backend.broker.inspector.job(backend.queue, job_id)
    assert view is not None and (view.id, view.queue) == (job_id, backend.queue)
    return view


def dies(entry: Entry) -> Outcome:
    """Return the outcome of an encoded message that dies."""
    body = entry.body or b""
    return Outcome(Kind.DEAD, entry.ref, decode_message(body).id, body=body, task="t", letter=LETTER)


class InspectingPromises(Promises):
    @promise()
    async def test_opening_a_broker_twice_has_no_further_effect(self, backend: BackendUnderTest) -> None:
        await backend.broker.open()
        assert await addresses(backend) == [backend.queue]

    @promise()
    async def test_closing_a_broker_twice_has_no_further_effect(self, backend: BackendUnderTest) -> None:
        other = await backend.another()
        await other.close()
        await other.close()
        assert await addresses(backend) == [backend.queue]

    @promise()
    async def test_the_capabilities_name_the_server(self, backend: BackendUnderTest) -> None:
        assert backend.broker.capabilities.server

    @promise()
    async def test_the_status_of_a_job_that_does_not_exist_is_unknown(self, backend: BackendUnderTest) -> None:
        assert await backend.status("never") == "unknown"
        assert await backend.status("never", Address("no such queue")) == "unknown"

    @promise()
    async def test_the_status_of_a_job_follows_its_state(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", delay=5)
        seen = [await backend.status("a")]
        backend.at(5)
        await backend.claim("c", 0)
        seen.append(await backend.status("a"))
        entries = await backend.take("c")
        seen.append(await backend.status("a"))
        await backend.release("c", entries)
        seen.append(await backend.status("a"))
        await backend.settle("c", await backend.take("c"), Kind.RETRY, delay=5)
        seen.append(await backend.status("a"))
        backend.at(10)
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        seen.append(await backend.status("a"))
        assert seen == ["scheduled", "ready", "running", "ready", "scheduled", "done"]

    @promise()
    async def test_an_abandoned_job_or_a_suspect_is_ready(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=SUSPECT_AFTER)
        assert await backend.status("a") == "ready"
        await backend.join("c")
        assert (await backend.claim("c")).suspects
        assert await backend.status("a") == "ready"
        await backend.claim("c", alone=True)
        assert await backend.status("a") == "running"

    @promise()
    async def test_a_dead_job_is_dead_with_and_without_a_stored_ending(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "kept", result=DEAD_ENDING, result_ttl=60)
        await backend.die("c", "bare")
        assert [await backend.status("kept"), await backend.status("bare")] == ["dead", "dead"]

    @promise()
    async def test_every_declared_or_joined_queue_is_listed_sorted(self, backend: BackendUnderTest) -> None:
        await backend.broker.declare(Address("z"))
        await backend.join("c", queue=Address("b"))
        await backend.broker.declare(Address("a"))
        await backend.broker.declare(Address("a"))
        assert sorted(await addresses(backend)) == sorted(["a", "b", "z", backend.queue])
        assert [name for name in await backend.broker.inspector.queues() if name != backend.queue] == ["a", "b", "z"]

    @promise()
    async def test_an_unknown_queue_has_empty_counts(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.inspector.queue(Address("none")) == QueueState(
            Address("none"), 0, 0, 0, 0, False, 0, NOTHING
        )
        assert await addresses(backend) == [backend.queue]

    @promise()
    async def test_a_queue_counts_its_jobs_by_state(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.die("c", "dead")
        await backend.publish("r1", "r2", "r3", "w1", "w2")
        await backend.take("c", 3)
        await backend.publish("s1", delay=5)
        await backend.broker.pause(backend.queue)
        state = await backend.broker.inspector.queue(backend.queue)
        assert state == QueueState(backend.queue, 2, 3, 1, 1, True, 2, {**NOTHING, "published": 7, "dead": 1})

    @promise()
    async def test_released_jobs_abandoned_jobs_and_suspects_are_counted_as_ready(self, backend: BackendUnderTest) -> None:
        await backend.publish("suspect")
        await backend.crash("x", lives=SUSPECT_AFTER)
        await backend.join("c", "d")
        await backend.claim("c")
        await backend.publish("orphan", "released")
        await backend.take("d", 1)
        await backend.release("c", await backend.take("c", 1))
        await backend.broker.leave(backend.queue, "d")
        state = await backend.broker.inspector.queue(backend.queue)
        assert (state.ready, state.running, state.consumers, state.suspects) == (3, 0, 1, 1)

    @promise()
    async def test_totals_count_outcomes_cancellations_and_releases(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("done", "retry", "dead", "expired", "release", "cancel")
        done, retry, dead, expired, release = await backend.take("c", 5)
        await backend.broker.cancel(backend.queue, "cancel")
        kinds = zip((done, retry, dead, expired), Kind, strict=True)
        await backend.broker.settle(backend.queue, "c", [outcome(entry, kind) for entry, kind in kinds])
        await backend.release("c", [release])
        await backend.publish("done2", "release2")
        await backend.release("c", (await backend.take("d"))[:0])
        assert await backend.totals() == {
            "published": 8,
            "done": 1,
            "retried": 1,
            "dead": 1,
            "expired": 1,
            "cancelled": 1,
            "released": 1,
            "lapsed": 0,
        }

    # -- jobs --------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_every_job_is_listed_under_its_state(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await send(backend, "dead")
        await backend.broker.settle(backend.queue, "c", [dies(entry) for entry in await backend.take("c")])
        await send(backend, "running", "ready")
        await backend.take("c", 1)
        await send(backend, "scheduled", delay=5)
        for status in ("dead", "running", "ready", "scheduled"):
            assert await listed(backend, status) == [status]

    @promise()
    async def test_the_lists_of_an_unknown_queue_are_empty(self, backend: BackendUnderTest) -> None:
        for status in ("scheduled", "ready", "running", "dead"):
            assert await backend.broker.inspector.jobs(Address("none"), status) == []
        assert await addresses(backend) == [backend.queue]

    @promise()
    async def test_jobs_are_listed_as_ready_before_the_first_consumer_joins(self, backend: BackendUnderTest) -> None:
        await send(backend, "a", "b", "c")
        assert await listed(backend, "ready", limit=2) == ["a", "b", "c"]

    @promise()
    async def test_ready_jobs_are_listed_in_the_order_of_their_claims(self, backend: BackendUnderTest) -> None:
        await send(backend, "suspect")
        await backend.crash("x", lives=SUSPECT_AFTER)
        await backend.join("c", "d", "e")
        await backend.claim("c")
        await send(backend, "orphan1", "orphan2", "released", "fresh1", "fresh2")
        await backend.take("d", 2)
        await backend.release("c", await backend.take("c", 1))
        await backend.broker.leave(backend.queue, "d")
        for limit in (1, 2, 3, 100):
            assert await listed(backend, "ready", limit) == [
                "released",
                "suspect",
                "orphan1",
                "orphan2",
                "fresh1",
                "fresh2",
            ]
        await backend.take("e", 4)
        assert await listed(backend, "ready") == ["suspect", "fresh2"]

    @promise()
    async def test_running_jobs_are_listed_by_consumer(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "b")
        await send(backend, "1", "2", "3", "4", "5")
        await backend.take("c", 2)
        await backend.take("b", 2)
        for limit in (1, 3, 100):
            assert await listed(backend, "running", limit) == ["3", "4", "1", "2"]

    @promise()
    async def test_scheduled_jobs_are_listed_by_due_time(self, backend: BackendUnderTest) -> None:
        await send(backend, "late", delay=60)
        await send(backend, "b", "a", "c", delay=5)
        for limit in (1, 2, 100):
            assert await listed(backend, "scheduled", limit) == ["a", "b", "c", "late"]

    @promise()
    async def test_a_cursor_stays_valid_after_its_job_is_cancelled(self, backend: BackendUnderTest) -> None:
        inspector = backend.broker.inspector
        await send(backend, "r1", "r2", "r3")
        await send(backend, "s1", delay=1)
        await send(backend, "s2", delay=2)
        await send(backend, "s3", delay=3)
        cursors: dict[Listed, str] = {
            s: (await inspector.jobs(backend.queue, s, limit=2))[-1].cursor for s in ("ready", "scheduled")
        }
        for job_id in ("r2", "s2"):
            await backend.broker.cancel(backend.queue, job_id)
        later = [await inspector.jobs(backend.queue, status, after=cursor) for status, cursor in cursors.items()]
        assert [[view.id for view in page] for page in later] == [["r3"], ["s3"]]

    @promise()
    async def test_jobs_claimed_between_two_pages_are_not_listed_as_ready(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await send(backend, "a", "b", "c", "d")
        (first,) = await backend.broker.inspector.jobs(backend.queue, "ready", limit=1)
        await backend.take("c", 3)
        assert [view.id for view in await backend.broker.inspector.jobs(backend.queue, "ready", after=first.cursor)] == ["d"]

    @promise()
    async def test_a_list_of_large_jobs_is_complete_despite_smaller_pages(self, backend: BackendUnderTest) -> None:
        names = [f"n{n}" for n in range(7)]
        await send(backend, *names, size=100_000)
        assert await listed(backend, "ready") == names

    @promise()
    async def test_a_view_contains_every_field_of_its_state(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await send(backend, "running", expires=60)
        await backend.crash("x", lives=1)
        await backend.take("c")
        running = await view_of(backend, "running")
        assert (running.status, running.consumer, running.crashes) == ("running", "c", 1)
        assert running.expires_at == START + 60
        assert running.since is not None and running.since > 1e9
        (listed,) = await backend.broker.inspector.jobs(backend.queue, "running")
        # A backend may compute the start from the current time in milliseconds, so two reads can differ by one.
        assert listed.since is not None and abs(listed.since - running.since) < 0.1
        assert msgspec.structs.replace(listed, since=running.since) == running
        await send(backend, "scheduled", delay=5, expires=9)
        scheduled = await view_of(backend, "scheduled")
        assert (scheduled.status, scheduled.due_at, scheduled.expires_at) == ("scheduled", START + 5, START + 9)
        assert [scheduled] == await backend.broker.inspector.jobs(backend.queue, "scheduled")
        await send(backend, "ready")
        ready = await view_of(backend, "ready")
        assert (ready.status, ready.consumer, ready.since, ready.crashes, ready.due_at) == ("ready", "", None, 0, None)
        assert [ready] == await backend.broker.inspector.jobs(backend.queue, "ready")
        for view in (running, scheduled, ready):
            assert view.message is not None and (view.message.id, view.message.task) == (view.id, "t")

    @promise()
    async def test_the_view_of_an_abandoned_job_is_ready_with_its_crashes(self, backend: BackendUnderTest) -> None:
        await send(backend, "a")
        await backend.crash("x", lives=2)
        view = await view_of(backend, "a")
        assert (view.status, view.crashes, view.consumer) == ("ready", 2, "")

    @promise()
    async def test_the_view_of_a_dead_job_contains_its_dead_letter_and_ending(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", result=DEAD_ENDING, result_ttl=60)
        view = await view_of(backend, "a")
        assert (view.status, view.letter) == ("dead", await backend.broker.inspector.dead_letter(backend.queue, "a"))
        assert view.letter is not None and view.letter.source
        assert view.ending == decode_ending(DEAD_ENDING)

    @promise()
    async def test_an_ended_job_has_a_view_while_its_ending_is_stored(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("kept", "bare", "cancelled")
        await backend.broker.cancel(backend.queue, "cancelled")
        kept, bare = await backend.take("c")
        await backend.settle("c", [kept], result=DONE_ENDING, result_ttl=60)
        await backend.settle("c", [bare])
        view = await view_of(backend, "kept")
        assert (view.status, view.ending, view.body) == ("done", decode_ending(DONE_ENDING), b"")
        assert (await view_of(backend, "cancelled")).status == "cancelled"
        assert await backend.broker.inspector.job(backend.queue, "bare") is None
        assert await backend.broker.inspector.job(backend.queue, "never") is None
        assert await backend.broker.inspector.job(Address("none"), "kept") is None

    @promise()
    async def test_the_view_of_an_ended_job_contains_its_end_time_and_task(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("done", "cancelled", "expired", "old")
        await backend.broker.cancel(backend.queue, "cancelled")
        before = time.time()
        done, expired, old = await backend.take("c")
        ending = Ending("done", task="t", ttl=60.0, enqueued_ms=17)
        await backend.settle("c", [done], result=encode_ending(ending), result_ttl=60)
        late = encode_ending(Ending("expired", task="t", ttl=90.0))
        await backend.settle("c", [expired], Kind.EXPIRED, result=late, result_ttl=90)
        await backend.settle("c", [old], result=encode_ending(Ending("done")), result_ttl=60)
        for name, task in (("done", "t"), ("cancelled", ""), ("expired", "t")):
            view = await view_of(backend, name)
            assert (view.status, view.task) == (name, task)
            assert view.ended_at is not None and abs(view.ended_at - before) < 60
        assert (await view_of(backend, "done")).enqueued_ms == 17
        assert (await view_of(backend, "old")).ended_at is None

    @promise()
    async def test_examine_finds_nothing_bad_in_a_queue_in_normal_use(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "dead")
        await backend.publish("a", "b", "c")
        await backend.publish("later", delay=5)
        await backend.take("c", 1)
        findings = await backend.broker.inspector.examine()
        assert findings
        assert [finding for finding in findings if finding.health == "bad"] == []
        assert all(finding.way_out for finding in findings if finding.health != "ok")

    # -- dead letters ------------------------------------------------------------------------------------------------------

    @promise()
    async def test_dead_letters_are_listed_oldest_first(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "b", "a", "c")
        assert [dead.id for dead in await backend.broker.inspector.dead_letters(backend.queue)] == ["b", "a", "c"]

    @promise()
    async def test_dead_letters_are_listed_in_pages(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        names = [f"n{n}" for n in range(7)]
        await backend.die("c", *names)
        seen: list[str] = []
        cursor = ""
        while page := await backend.broker.inspector.dead_letters(backend.queue, after=cursor, limit=3):
            assert len(page) <= 3
            seen += [dead.id for dead in page]
            cursor = page[-1].cursor
        assert seen == names

    @promise()
    async def test_a_cursor_stays_valid_after_its_dead_letter_is_purged(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", "b", "c")
        page = await backend.broker.inspector.dead_letters(backend.queue, limit=2)
        await backend.broker.purge(backend.queue, ["b"])
        later = await backend.broker.inspector.dead_letters(backend.queue, after=page[-1].cursor)
        assert [dead.id for dead in later] == ["c"]

    @promise()
    async def test_a_dead_letter_found_by_id_equals_the_listed_one(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", "b")
        listed = await backend.broker.inspector.dead_letters(backend.queue)
        assert [await backend.broker.inspector.dead_letter(backend.queue, name) for name in ("a", "b")] == listed

    @promise()
    async def test_only_a_dead_job_has_a_dead_letter(self, backend: BackendUnderTest) -> None:
        await backend.publish("ready")
        assert await backend.broker.inspector.dead_letter(backend.queue, "ready") is None
        assert await backend.broker.inspector.dead_letter(backend.queue, "never") is None
        assert await backend.broker.inspector.dead_letters(Address("none")) == []

    @promise()
    async def test_jobs_of_one_task_are_found_anywhere_in_a_long_queue(self, backend: BackendUnderTest) -> None:
        await backend.join("c", lease=1e6)
        rare = {"first", "middle", "last"}
        names = ["first", *map(str, range(1300)), "middle", *map(str, range(1300, 2600)), "last"]
        for delay in (0.0, 5.0):
            posts = [as_task(f"{name}{delay:g}", "rare" if name in rare else "common", delay) for name in names]
            for start in range(0, len(posts), 200):
                await backend.broker.publish(backend.queue, posts[start : start + 200])
        for status, suffix in (("ready", "0"), ("scheduled", "5")):
            found: list[JobView] = []
            while page := await backend.broker.inspector.jobs(
                backend.queue, cast(Listed, status), after=found[-1].cursor if found else "", limit=2, task="rare"
            ):
                assert len(page) <= 2
                found += page
            assert sorted(view.id for view in found) == sorted(f"{name}{suffix}" for name in rare)
            assert await backend.broker.inspector.jobs(backend.queue, cast(Listed, status), task="nosuch") == []

    @promise()
    async def test_running_blocked_and_dead_jobs_of_one_task_are_listed(self, backend: BackendUnderTest) -> None:
        await backend.join("c", lease=1e6)
        await backend.broker.publish(backend.queue, [as_task(f"{task}-dead", task) for task in ("x", "y")])
        for entry in await backend.take("c"):
            body = entry.body or b""
            message = decode_message(body)
            died = Outcome(Kind.DEAD, entry.ref, message.id, body=body, task=message.task, letter=LETTER)
            await backend.broker.settle(backend.queue, "c", [died])
        await backend.broker.publish(backend.queue, [as_task(f"{task}-runs", task) for task in ("x", "y")])
        await backend.take("c")
        waiting = [as_task(f"{task}-waits", task, key=b"k") for task in ("z", "x", "y")]
        await backend.broker.publish(backend.queue, waiting)
        await backend.take("c")
        for status, name in (("running", "y-runs"), ("blocked", "y-waits"), ("dead", "y-dead")):
            page = await backend.broker.inspector.jobs(backend.queue, cast(Listed, status), task="y")
            assert [view.id for view in page] == [name]


def as_task(name: str, task: str, delay: float = 0.0, key: bytes | None = None) -> Post:
    """Return a job of this task as an encoded message."""
    # the arguments look like a task name; only the task of the message counts
    args = msgspec.Raw(msgspec.msgpack.encode(["y"]))
    return Post(name, encode_message(Message(name, task, args, 17)), task, delay=delay, key=key)
