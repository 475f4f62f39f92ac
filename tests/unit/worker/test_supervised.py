"""A worker process under a supervisor: what it reports, and that it retires only when it holds no job."""

from __future__ import annotations

import asyncio
import socket

from millstream import Millstream
from millstream.model.address import Address
from millstream.worker import messages
from millstream.worker.assignment import Assignment
from millstream.worker.child.hello import at_once, consumers_at, slots_at
from tests.stage import looped, new_app, until


def assigned(app: Millstream) -> Assignment:
    """Return the assignment of a whole app, for a process with 10 coroutines and 3 threads."""
    return app.assignment(app.queues_to_serve(()), concurrency=10, threads=3)


@looped
async def test_a_worker_with_a_running_job_does_not_retire_and_an_idle_one_starts_nothing_more() -> None:
    app, gate, ran = new_app(), asyncio.Event(), list[int]()

    @app.task
    async def wait(number: int) -> None:
        ran.append(number)
        await gate.wait()

    async with app.worker() as worker:
        assert worker.held == 0
        job = await wait.enqueue(1)
        await until(lambda: ran == [1])
        assert worker.held == 1
        assert not worker.retire()
        gate.set()
        await job.result(20.0)
        await until(lambda: worker.held == 0)
        assert worker.retire()
        left = await wait.enqueue(2)
    assert ran == [1]
    assert await left.status() == "ready"


@looped
async def test_a_message_to_the_supervisor_may_name_thousands_of_addresses() -> None:
    ends = [await messages.streams(end) for end in socket.socketpair()]
    (_, writer), (reader, other) = ends
    queues = [Address(f"a-queue-with-a-name-of-some-length-{number}") for number in range(20_000)]
    hello = messages.Hello("memory://", "n", 60.0, 0.0, 0.0, queues, [], [], slots=dict.fromkeys(map(str, queues), 1))
    messages.say(writer, hello)
    assert await messages.hear(reader) == hello
    writer.close()
    other.close()


def test_a_worker_process_reports_how_many_jobs_of_each_address_it_can_run() -> None:
    app = new_app()

    @app.task(queue="coroutines")
    async def coroutine() -> None: ...

    @app.task(queue="threads")
    def thread() -> None: ...

    @app.task(queue="both")
    async def one() -> None: ...

    @app.task(queue="both")
    def other() -> None: ...

    topic = app.topic("orders", int)

    @topic.subscribe("few", concurrency=2)
    async def few(number: int) -> None: ...

    @topic.subscribe("many", concurrency=200)
    def many(number: int) -> None: ...

    assignment = assigned(app)
    slots = slots_at(assignment)
    assert slots == {
        "coroutines": {True: 10},
        "threads": {False: 3},
        "both": {True: 10, False: 3},
        "orders/few": {True: 2},
        "orders/many": {False: 3},
    }
    assert at_once(slots, assignment) == 13


def test_the_slots_of_small_groups_add_up_to_at_most_the_slots_of_the_process() -> None:
    app = new_app()
    app.task(name="job")(lambda: None)
    assignment = assigned(app)
    three = {f"orders/{name}": {True: 3} for name in "abc"}
    assert at_once(three, assignment) == 9
    assert at_once(three | {"orders/d": {True: 3}}, assignment) == 10
    assert at_once(three | {"orders/d": {False: 2}}, assignment) == 11


def test_a_worker_process_reports_the_declared_consumer_limits() -> None:
    app = new_app()
    app.queue("mail", consumers=(1, 4))

    @app.task(queue="mail")
    async def mail() -> None: ...

    @app.task(queue="other")
    async def other() -> None: ...

    @app.topic("orders", int).subscribe("billing", consumers=(2, 2))
    async def bill(number: int) -> None: ...

    assert consumers_at(assigned(app), app.queues) == {"mail": (1, 4), "orders/billing": (2, 2)}
