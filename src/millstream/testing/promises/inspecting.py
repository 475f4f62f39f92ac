"""What can be seen."""

from __future__ import annotations

import time
from typing import Any, cast

import msgspec

from millstream.address import group_address
from millstream.broker import Entry, JobView, Listed, Post, QueueState
from millstream.broker.contract import SUSPECT_AFTER
from millstream.message import Message, decode_message, encode_message
from millstream.outcome import Ending, Kind, Outcome, decode_ending, encode_ending
from millstream.testing.room import DEAD_ENDING, DONE_ENDING, LETTER, START, Promises, Room, outcome, promise

NOTHING = {"published": 0, "done": 0, "retried": 0, "dead": 0, "expired": 0, "cancelled": 0, "released": 0, "lapsed": 0}


async def send(room: Room, *ids: str, size: int = 0, **fields: Any) -> None:
    """Whole messages, which a room can read the id of."""
    args = msgspec.Raw(msgspec.msgpack.encode([bytes(size)]))
    posts = [Post(i, encode_message(Message(i, "t", args, 17)), "t", **fields) for i in ids]
    await room.broker.publish(room.queue, posts)


async def listed(room: Room, status: Listed, limit: int = 100) -> list[str]:
    """The ids of all jobs of one state, read in pages."""
    found: list[JobView] = []
    while page := await room.broker.inspector.jobs(room.queue, status, after=found[-1].cursor if found else "", limit=limit):
        assert len(page) <= limit
        assert {view.status for view in page} == {status}
        found += page
    return [view.id for view in found]


async def addresses(room: Room) -> list[str]:
    """Every queue and every group that is known."""
    found = await room.broker.inspector.queues()
    for name in await room.broker.inspector.topics():
        found += [group_address(name, group.name) for group in (await room.broker.inspector.topic(name)).groups]
    return found


async def view_of(room: Room, job_id: str) -> JobView:
    view = await room.broker.inspector.job(room.queue, job_id)
    assert view is not None and (view.id, view.queue) == (job_id, room.queue)
    return view


def dies(entry: Entry) -> Outcome:
    """The end of a whole message."""
    body = entry.body or b""
    return Outcome(Kind.DEAD, entry.ref, decode_message(body).id, body=body, task="t", letter=LETTER)


class InspectingPromises(Promises):
    @promise()
    async def test_opening_twice_is_opening_once(self, room: Room) -> None:
        await room.broker.open()
        assert await addresses(room) == [room.queue]

    @promise()
    async def test_closing_twice_is_closing_once(self, room: Room) -> None:
        other = await room.another()
        await other.close()
        await other.close()
        assert await addresses(room) == [room.queue]

    @promise()
    async def test_a_server_has_a_name(self, room: Room) -> None:
        assert room.broker.capabilities.server

    @promise()
    async def test_a_job_nobody_heard_of_is_unknown(self, room: Room) -> None:
        assert await room.status("never") == "unknown"
        assert await room.status("never", "no such queue") == "unknown"

    @promise()
    async def test_a_jobs_status_follows_its_life(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", delay=5)
        seen = [await room.status("a")]
        room.at(5)
        await room.claim("c", 0)
        seen.append(await room.status("a"))
        entries = await room.take("c")
        seen.append(await room.status("a"))
        await room.release("c", entries)
        seen.append(await room.status("a"))
        await room.settle("c", await room.take("c"), Kind.RETRY, delay=5)
        seen.append(await room.status("a"))
        room.at(10)
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        seen.append(await room.status("a"))
        assert seen == ["scheduled", "ready", "running", "ready", "scheduled", "done"]

    @promise()
    async def test_a_job_that_waits_for_a_takeover_or_to_run_alone_is_ready(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=SUSPECT_AFTER)
        assert await room.status("a") == "ready"
        await room.join("c")
        assert (await room.claim("c")).suspects
        assert await room.status("a") == "ready"
        await room.claim("c", alone=True)
        assert await room.status("a") == "running"

    @promise()
    async def test_a_dead_job_is_dead_whether_its_ending_is_kept_or_not(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "kept", result=DEAD_ENDING, result_ttl=60)
        await room.die("c", "bare")
        assert [await room.status("kept"), await room.status("bare")] == ["dead", "dead"]

    @promise()
    async def test_every_declared_or_joined_queue_is_listed_in_order(self, room: Room) -> None:
        await room.broker.declare("z")
        await room.join("c", queue="b")
        await room.broker.declare("a")
        await room.broker.declare("a")
        assert sorted(await addresses(room)) == sorted(["a", "b", "z", room.queue])
        assert [name for name in await room.broker.inspector.queues() if name != room.queue] == ["a", "b", "z"]

    @promise()
    async def test_a_queue_nobody_used_is_empty(self, room: Room) -> None:
        assert await room.broker.inspector.queue("none") == QueueState("none", 0, 0, 0, 0, False, 0, NOTHING)
        assert await addresses(room) == [room.queue]

    @promise()
    async def test_a_queue_in_numbers(self, room: Room) -> None:
        await room.join("c", "d")
        await room.die("c", "dead")
        await room.publish("r1", "r2", "r3", "w1", "w2")
        await room.take("c", 3)
        await room.publish("s1", delay=5)
        await room.broker.pause(room.queue)
        state = await room.broker.inspector.queue(room.queue)
        assert state == QueueState(room.queue, 2, 3, 1, 1, True, 2, {**NOTHING, "published": 7, "dead": 1})

    @promise()
    async def test_released_orphaned_and_set_aside_jobs_are_counted_as_ready(self, room: Room) -> None:
        await room.publish("suspect")
        await room.crash("x", lives=SUSPECT_AFTER)
        await room.join("c", "d")
        await room.claim("c")
        await room.publish("orphan", "released")
        await room.take("d", 1)
        await room.release("c", await room.take("c", 1))
        await room.broker.leave(room.queue, "d")
        state = await room.broker.inspector.queue(room.queue)
        assert (state.ready, state.running, state.consumers, state.suspects) == (3, 0, 1, 1)

    @promise()
    async def test_totals_count_what_happened(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("done", "retry", "dead", "expired", "release", "cancel")
        done, retry, dead, expired, release = await room.take("c", 5)
        await room.broker.cancel(room.queue, "cancel")
        kinds = zip((done, retry, dead, expired), Kind, strict=True)
        await room.broker.settle(room.queue, "c", [outcome(entry, kind) for entry, kind in kinds])
        await room.release("c", [release])
        await room.publish("done2", "release2")
        await room.release("c", (await room.take("d"))[:0])
        assert await room.totals() == {
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
    async def test_every_job_is_in_the_list_of_its_state(self, room: Room) -> None:
        await room.join("c")
        await send(room, "dead")
        await room.broker.settle(room.queue, "c", [dies(entry) for entry in await room.take("c")])
        await send(room, "running", "ready")
        await room.take("c", 1)
        await send(room, "scheduled", delay=5)
        for status in ("dead", "running", "ready", "scheduled"):
            assert await listed(room, status) == [status]

    @promise()
    async def test_lists_of_a_queue_nobody_used_are_empty(self, room: Room) -> None:
        for status in ("scheduled", "ready", "running", "dead"):
            assert await room.broker.inspector.jobs("none", status) == []
        assert await addresses(room) == [room.queue]

    @promise()
    async def test_jobs_are_ready_before_the_first_consumer_came(self, room: Room) -> None:
        await send(room, "a", "b", "c")
        assert await listed(room, "ready", limit=2) == ["a", "b", "c"]

    @promise()
    async def test_ready_jobs_are_listed_as_they_will_be_claimed(self, room: Room) -> None:
        await send(room, "suspect")
        await room.crash("x", lives=SUSPECT_AFTER)
        await room.join("c", "d", "e")
        await room.claim("c")
        await send(room, "orphan1", "orphan2", "released", "fresh1", "fresh2")
        await room.take("d", 2)
        await room.release("c", await room.take("c", 1))
        await room.broker.leave(room.queue, "d")
        for limit in (1, 2, 3, 100):
            assert await listed(room, "ready", limit) == [
                "released",
                "suspect",
                "orphan1",
                "orphan2",
                "fresh1",
                "fresh2",
            ]
        await room.take("e", 4)
        assert await listed(room, "ready") == ["suspect", "fresh2"]

    @promise()
    async def test_running_jobs_are_listed_consumer_by_consumer(self, room: Room) -> None:
        await room.join("c", "b")
        await send(room, "1", "2", "3", "4", "5")
        await room.take("c", 2)
        await room.take("b", 2)
        for limit in (1, 3, 100):
            assert await listed(room, "running", limit) == ["3", "4", "1", "2"]

    @promise()
    async def test_scheduled_jobs_are_listed_by_due_time(self, room: Room) -> None:
        await send(room, "late", delay=60)
        await send(room, "b", "a", "c", delay=5)
        for limit in (1, 2, 100):
            assert await listed(room, "scheduled", limit) == ["a", "b", "c", "late"]

    @promise()
    async def test_a_cursor_outlives_its_job(self, room: Room) -> None:
        inspector = room.broker.inspector
        await send(room, "r1", "r2", "r3")
        await send(room, "s1", delay=1)
        await send(room, "s2", delay=2)
        await send(room, "s3", delay=3)
        cursors: dict[Listed, str] = {
            s: (await inspector.jobs(room.queue, s, limit=2))[-1].cursor for s in ("ready", "scheduled")
        }
        for job_id in ("r2", "s2"):
            await room.broker.cancel(room.queue, job_id)
        later = [await inspector.jobs(room.queue, status, after=cursor) for status, cursor in cursors.items()]
        assert [[view.id for view in page] for page in later] == [["r3"], ["s3"]]

    @promise()
    async def test_what_was_claimed_meanwhile_is_not_listed_as_ready(self, room: Room) -> None:
        await room.join("c")
        await send(room, "a", "b", "c", "d")
        (first,) = await room.broker.inspector.jobs(room.queue, "ready", limit=1)
        await room.take("c", 3)
        assert [view.id for view in await room.broker.inspector.jobs(room.queue, "ready", after=first.cursor)] == ["d"]

    @promise()
    async def test_large_jobs_are_listed_in_smaller_pages_and_none_is_left_out(self, room: Room) -> None:
        names = [f"n{n}" for n in range(7)]
        await send(room, *names, size=100_000)
        assert await listed(room, "ready") == names

    @promise()
    async def test_a_view_says_what_there_is_to_say(self, room: Room) -> None:
        await room.join("c")
        await send(room, "running", expires=60)
        await room.crash("x", lives=1)
        await room.take("c")
        running = await view_of(room, "running")
        assert (running.status, running.consumer, running.crashes) == ("running", "c", 1)
        assert running.expires_at == START + 60
        assert running.since is not None and running.since > 1e9
        (listed,) = await room.broker.inspector.jobs(room.queue, "running")
        # Since when may be reckoned back from now, to the millisecond: two readings differ by one now and then.
        assert listed.since is not None and abs(listed.since - running.since) < 0.1
        assert msgspec.structs.replace(listed, since=running.since) == running
        await send(room, "scheduled", delay=5, expires=9)
        scheduled = await view_of(room, "scheduled")
        assert (scheduled.status, scheduled.due_at, scheduled.expires_at) == ("scheduled", START + 5, START + 9)
        assert [scheduled] == await room.broker.inspector.jobs(room.queue, "scheduled")
        await send(room, "ready")
        ready = await view_of(room, "ready")
        assert (ready.status, ready.consumer, ready.since, ready.crashes, ready.due_at) == ("ready", "", None, 0, None)
        assert [ready] == await room.broker.inspector.jobs(room.queue, "ready")
        for view in (running, scheduled, ready):
            assert view.message is not None and (view.message.id, view.message.task) == (view.id, "t")

    @promise()
    async def test_a_job_that_was_left_behind_is_ready_and_its_crashes_are_counted(self, room: Room) -> None:
        await send(room, "a")
        await room.crash("x", lives=2)
        view = await view_of(room, "a")
        assert (view.status, view.crashes, view.consumer) == ("ready", 2, "")

    @promise()
    async def test_a_dead_job_is_seen_with_its_letter_and_its_ending(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", result=DEAD_ENDING, result_ttl=60)
        view = await view_of(room, "a")
        assert (view.status, view.letter) == ("dead", await room.broker.inspector.dead_letter(room.queue, "a"))
        assert view.letter is not None and view.letter.source
        assert view.ending == decode_ending(DEAD_ENDING)

    @promise()
    async def test_an_ended_job_is_seen_while_its_ending_is_kept(self, room: Room) -> None:
        await room.join("c")
        await room.publish("kept", "bare", "cancelled")
        await room.broker.cancel(room.queue, "cancelled")
        kept, bare = await room.take("c")
        await room.settle("c", [kept], result=DONE_ENDING, result_ttl=60)
        await room.settle("c", [bare])
        view = await view_of(room, "kept")
        assert (view.status, view.ending, view.body) == ("done", decode_ending(DONE_ENDING), b"")
        assert (await view_of(room, "cancelled")).status == "cancelled"
        assert await room.broker.inspector.job(room.queue, "bare") is None
        assert await room.broker.inspector.job(room.queue, "never") is None
        assert await room.broker.inspector.job("none", "kept") is None

    @promise()
    async def test_an_ended_job_says_when_it_ended_and_what_its_ending_holds(self, room: Room) -> None:
        await room.join("c")
        await room.publish("done", "cancelled", "expired", "old")
        await room.broker.cancel(room.queue, "cancelled")
        before = time.time()
        done, expired, old = await room.take("c")
        ending = Ending("done", task="t", ttl=60.0, enqueued_ms=17)
        await room.settle("c", [done], result=encode_ending(ending), result_ttl=60)
        late = encode_ending(Ending("expired", task="t", ttl=90.0))
        await room.settle("c", [expired], Kind.EXPIRED, result=late, result_ttl=90)
        await room.settle("c", [old], result=encode_ending(Ending("done")), result_ttl=60)
        for name, task in (("done", "t"), ("cancelled", ""), ("expired", "t")):
            view = await view_of(room, name)
            assert (view.status, view.task) == (name, task)
            assert view.ended_at is not None and abs(view.ended_at - before) < 60
        assert (await view_of(room, "done")).enqueued_ms == 17
        assert (await view_of(room, "old")).ended_at is None

    @promise()
    async def test_an_examination_finds_nothing_bad_in_a_queue_that_was_used(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "dead")
        await room.publish("a", "b", "c")
        await room.publish("later", delay=5)
        await room.take("c", 1)
        findings = await room.broker.inspector.examine()
        assert findings
        assert [finding for finding in findings if finding.health == "bad"] == []
        assert all(finding.way_out for finding in findings if finding.health != "ok")

    # -- dead letters ------------------------------------------------------------------------------------------------------

    @promise()
    async def test_dead_letters_come_oldest_first(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "b", "a", "c")
        assert [dead.id for dead in await room.broker.inspector.dead_letters(room.queue)] == ["b", "a", "c"]

    @promise()
    async def test_dead_letters_come_in_pages(self, room: Room) -> None:
        await room.join("c")
        names = [f"n{n}" for n in range(7)]
        await room.die("c", *names)
        seen: list[str] = []
        cursor = ""
        while page := await room.broker.inspector.dead_letters(room.queue, after=cursor, limit=3):
            assert len(page) <= 3
            seen += [dead.id for dead in page]
            cursor = page[-1].cursor
        assert seen == names

    @promise()
    async def test_a_cursor_outlives_its_letter(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", "b", "c")
        page = await room.broker.inspector.dead_letters(room.queue, limit=2)
        await room.broker.purge(room.queue, ["b"])
        later = await room.broker.inspector.dead_letters(room.queue, after=page[-1].cursor)
        assert [dead.id for dead in later] == ["c"]

    @promise()
    async def test_a_letter_found_by_id_is_the_one_in_the_list(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", "b")
        listed = await room.broker.inspector.dead_letters(room.queue)
        assert [await room.broker.inspector.dead_letter(room.queue, name) for name in ("a", "b")] == listed

    @promise()
    async def test_there_is_no_letter_of_what_is_not_dead(self, room: Room) -> None:
        await room.publish("ready")
        assert await room.broker.inspector.dead_letter(room.queue, "ready") is None
        assert await room.broker.inspector.dead_letter(room.queue, "never") is None
        assert await room.broker.inspector.dead_letters("none") == []

    @promise()
    async def test_jobs_of_one_task_are_listed_wherever_they_are_in_a_long_queue(self, room: Room) -> None:
        await room.join("c", lease=1e6)
        rare = {"first", "middle", "last"}
        names = ["first", *map(str, range(1300)), "middle", *map(str, range(1300, 2600)), "last"]
        for delay in (0.0, 5.0):
            posts = [as_task(f"{name}{delay:g}", "rare" if name in rare else "common", delay) for name in names]
            for start in range(0, len(posts), 200):
                await room.broker.publish(room.queue, posts[start : start + 200])
        for status, suffix in (("ready", "0"), ("scheduled", "5")):
            found: list[JobView] = []
            while page := await room.broker.inspector.jobs(
                room.queue, cast(Listed, status), after=found[-1].cursor if found else "", limit=2, task="rare"
            ):
                assert len(page) <= 2
                found += page
            assert sorted(view.id for view in found) == sorted(f"{name}{suffix}" for name in rare)
            assert await room.broker.inspector.jobs(room.queue, cast(Listed, status), task="nosuch") == []

    @promise()
    async def test_running_blocked_and_dead_jobs_of_one_task_are_listed(self, room: Room) -> None:
        await room.join("c", lease=1e6)
        await room.broker.publish(room.queue, [as_task(f"{task}-dead", task) for task in ("x", "y")])
        for entry in await room.take("c"):
            body = entry.body or b""
            message = decode_message(body)
            died = Outcome(Kind.DEAD, entry.ref, message.id, body=body, task=message.task, letter=LETTER)
            await room.broker.settle(room.queue, "c", [died])
        await room.broker.publish(room.queue, [as_task(f"{task}-runs", task) for task in ("x", "y")])
        await room.take("c")
        waiting = [as_task(f"{task}-waits", task, key=b"k") for task in ("z", "x", "y")]
        await room.broker.publish(room.queue, waiting)
        await room.take("c")
        for status, name in (("running", "y-runs"), ("blocked", "y-waits"), ("dead", "y-dead")):
            page = await room.broker.inspector.jobs(room.queue, cast(Listed, status), task="y")
            assert [view.id for view in page] == [name]


def as_task(name: str, task: str, delay: float = 0.0, key: bytes | None = None) -> Post:
    """A job of this task, as a whole message."""
    # its arguments look like the name of a task: only the message's own task counts
    args = msgspec.Raw(msgspec.msgpack.encode(["y"]))
    return Post(name, encode_message(Message(name, task, args, 17)), task, delay=delay, key=key)
