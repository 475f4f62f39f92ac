"""Dead events in code: handled by on_dead, forwarded to a topic, and kept when expired."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from millstream import DeadEvent, DeadJob, Delivery, Millstream, Problem, Reject, Retry, RetryPolicy, Snooze, Topic, current_job
from millstream.broker import Post
from millstream.errors import MalformedEvent, UsageError
from millstream.events import forward
from millstream.events.forward import Forwarder
from millstream.model.address import Address
from millstream.model.dead_letter import decode_letter
from millstream.model.message import decode_message
from tests.stage import PATIENCE, looped, new_app

pytestmark = pytest.mark.usefixtures("every_backend")

GROUP = Address("orders/billing")
DEAD = GROUP.dead


@dataclass
class Order:
    number: int
    customer: str = "ann"


def make(**options: Any) -> tuple[Millstream, Topic[Order]]:
    app = new_app(retry=RetryPolicy(0), **options)
    return app, app.topic("orders", Order)


def fail(orders: Topic[Order], **options: Any) -> None:
    """Subscribe a group in which every event dies."""

    async def bill(order: Order) -> None:
        raise Reject(f"no money for {order.number}")

    orders.subscribe("billing", **options)(bill)


async def until(happened: Callable[[], bool]) -> None:
    """Wait for a condition in this process."""
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.001)


async def until_so(happened: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition on the server."""
    async with asyncio.timeout(PATIENCE):
        while not await happened():
            await asyncio.sleep(0.001)


async def until_gone(app: Millstream, count: int = 1) -> None:
    """Wait until this number of dead letters was handled or forwarded and none is left."""

    async def gone() -> bool:
        state = await app.inspector.queue(DEAD)
        assert state.totals["done"] <= count
        return (state.totals["done"], state.dead) == (count, 0)

    await until_so(gone)


def ignore(event: Any) -> None:
    """A handler that accepts anything."""


async def until_dead(app: Millstream, count: int) -> None:
    async def dead() -> bool:
        return (await app.inspector.queue(GROUP)).dead == count

    await until_so(dead)


async def kill(app: Millstream, *events: Any, topic: Topic[Any]) -> list[str]:
    """Publish events and let a worker reject them, before any handler of dead letters exists."""
    sent = await topic.publish_many(events)
    async with app.worker([GROUP]):
        await until_dead(app, len(events))
    return sent


# -- on_dead ---------------------------------------------------------------------------------------------------------------


@looped
async def test_a_dead_event_is_passed_to_its_handler_with_all_its_details_and_then_deleted() -> None:
    app, orders = make()
    fail(orders)
    seen: list[DeadEvent[Order]] = []

    @orders.on_dead("billing")
    async def sorry(letter: DeadEvent[Order]) -> None:
        assert await orders.group("billing").dead.show(letter.id) is not None
        seen.append(letter)

    fields = {"key": "k", "kind": "paid", "source": "web", "correlation_id": "c", "version": "2", "content_type": "x/y"}
    async with app:
        began = datetime.now(UTC)
        sent = await orders.publish(Order(7), headers={"tenant": "acme"}, traceparent="00-ab-cd-01", **fields)  # type: ignore[arg-type]
        async with app.worker():
            await until(lambda: len(seen) == 1)
            await until_gone(app)
        assert await orders.group("billing").dead.list() == []
        assert await app.inspector.status(GROUP, sent) == "unknown"
        assert (await app.inspector.queue(GROUP)).totals["dead"] == 1
    (letter,) = seen
    assert (letter.id, letter.topic, letter.group, letter.event) == (sent, "orders", "billing", Order(7))
    assert (letter.reason, letter.error, letter.error_type) == ("rejected", "no money for 7", "Reject")
    assert "no money for 7" in letter.traceback
    assert (letter.attempts, letter.crashes) == (1, 0)
    assert letter.published_at is not None and letter.published_at.timestamp() <= letter.died_at.timestamp() + 1
    assert letter.published_at.timestamp() >= began.timestamp() - 1
    assert (letter.headers, letter.traceparent) == ({"tenant": "acme"}, "00-ab-cd-01")
    assert {name: getattr(letter, name) for name in fields} == fields
    assert isinstance(letter, DeadJob) and letter.event is letter.event


@looped
async def test_dead_letters_older_than_their_handler_are_handled_once_each() -> None:
    app, orders = make()
    fail(orders)
    handled: list[int] = []
    async with app:
        await kill(app, *map(Order, range(30)), topic=orders)

        @orders.on_dead("billing")
        def sorry(letter: DeadEvent[Order]) -> None:
            handled.append(letter.event.number)

        async with app.worker(), app.worker():
            await until_gone(app, 30)
    assert sorted(handled) == list(range(30))


# -- a handler that raises -------------------------------------------------------------------------------------------------


async def until_unhandled(app: Millstream, count: int = 1) -> list[DeadJob]:
    """Wait until this number of dead letters is marked unhandled and none is waiting for another attempt."""

    async def marked() -> bool:
        state = await app.inspector.queue(DEAD)
        return (state.totals["dead"], state.ready, state.running, state.scheduled) == (count, 0, 0, 0)

    await until_so(marked)
    return [letter for letter in await app.dead.list() if letter.unhandled is not None]


@looped
async def test_a_dead_letter_whose_handler_raises_stays_listed_and_is_retried() -> None:
    app, orders = make()
    fail(orders)
    calls: list[int] = []
    found: list[bool] = []

    @orders.on_dead("billing", retry=RetryPolicy(5, delay=0.01))
    async def sorry(letter: DeadEvent[Order]) -> None:
        calls.append(current_job().attempt)
        found.append(await orders.group("billing").dead.show(letter.id) is not None)
        if len(calls) < 3:
            raise ValueError("boom")

    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until_gone(app)
    assert (calls, found) == ([1, 2, 3], [True, True, True])


@looped
async def test_a_dead_letter_handler_in_a_thread_is_retried_too() -> None:
    app, orders = make()
    fail(orders)
    calls: list[int] = []

    @orders.on_dead("billing", retry=RetryPolicy(5, delay=0))
    def sorry(letter: DeadEvent[Order]) -> None:
        calls.append(current_job().attempt)
        if len(calls) < 3:
            raise ValueError("boom")

    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until_gone(app)
    assert calls == [1, 2, 3]


@looped
async def test_after_the_last_attempt_the_dead_letter_keeps_the_error_of_its_handler() -> None:
    app, orders = make()
    fail(orders)
    calls: list[int] = []

    @orders.on_dead("billing", retry=RetryPolicy(2, delay=0))
    async def sorry(letter: DeadEvent[Order]) -> None:
        calls.append(letter.event.number)
        raise ValueError(f"boom {len(calls)}")

    async with app:
        sent = await orders.publish(Order(1))
        async with app.worker():
            (letter,) = await until_unhandled(app)
        assert await app.dead.show(sent) == letter
        async with app.worker() as worker:
            await worker.until_idle()
    assert calls == [1, 1, 1]
    assert (letter.id, letter.reason, letter.error) == (sent, "rejected", "no money for 1")
    unhandled = letter.unhandled
    assert unhandled is not None
    assert (unhandled.reason, unhandled.error_type, unhandled.error) == ("exhausted", "ValueError", "boom 3")
    assert (unhandled.attempts, unhandled.crashes) == (3, 0)
    assert "in sorry" in unhandled.traceback and "boom 3" in unhandled.traceback
    assert [(each.number, each.error) for each in unhandled.failures] == [(1, "boom 1"), (2, "boom 2"), (3, "boom 3")]


@pytest.mark.parametrize("error", [Reject("no"), KeyError("never again")], ids=repr)
def test_an_error_that_is_not_retried_marks_the_dead_letter_immediately(error: Exception) -> None:
    calls: list[str] = []

    @looped
    async def story() -> None:
        app, orders = make()
        fail(orders)

        @orders.on_dead("billing", retry=RetryPolicy(5, delay=0, never_on=(KeyError,)))
        async def sorry(letter: DeadEvent[Order]) -> None:
            calls.append(letter.id)
            raise error

        async with app:
            await orders.publish(Order(1), id="o-1")
            async with app.worker():
                (letter,) = await until_unhandled(app)
        assert letter.unhandled is not None
        assert (letter.unhandled.reason, letter.unhandled.error_type) == ("rejected", type(error).__name__)

    story()
    assert calls == ["o-1"]


@looped
async def test_a_dead_letter_handler_may_raise_retry_or_snooze() -> None:
    app, orders = make()
    fail(orders)
    attempts: list[int] = []
    asked = [Snooze(0.01), Snooze(0.01), Retry(delay=0.01)]

    @orders.on_dead("billing", retry=1)
    async def sorry(letter: DeadEvent[Order]) -> None:
        attempts.append(current_job().attempt)
        if asked:
            raise asked.pop(0)

    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until_gone(app)
    assert attempts == [1, 1, 1, 2]


@looped
async def test_a_dead_letter_handler_without_a_retry_policy_uses_the_policy_of_the_app() -> None:
    app = new_app(retry=RetryPolicy(1, delay=0))
    orders = app.topic("orders", Order)
    fail(orders, retry=7)
    calls: list[int] = []

    @orders.on_dead("billing")
    async def sorry(letter: DeadEvent[Order]) -> None:
        calls.append(current_job().attempt)
        raise ValueError("boom")

    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until_unhandled(app)
    assert calls == [1, 2]


@looped
async def test_a_dead_letter_whose_handler_times_out_is_retried_and_then_marked_unhandled() -> None:
    app, orders = make()
    fail(orders)
    ended: list[str] = []

    @orders.on_dead("billing", timeout=0.05, retry=RetryPolicy(1, delay=0))
    async def sorry(letter: DeadEvent[Order]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(letter.id)

    async with app:
        await orders.publish(Order(1), id="o-1")
        async with app.worker():
            (letter,) = await until_unhandled(app)
    assert ended == ["o-1", "o-1"]
    assert letter.unhandled is not None and letter.unhandled.reason == "timeout"


@looped
async def test_dead_letters_waiting_for_a_retry_use_no_slot_and_do_not_keep_a_worker_busy() -> None:
    app, orders = make()
    fail(orders)
    handled: list[int] = []

    @orders.on_dead("billing", concurrency=1, retry=RetryPolicy(1, delay=3600))
    async def sorry(letter: DeadEvent[Order]) -> None:
        if letter.event.number < 5:
            raise ValueError("boom")
        handled.append(letter.event.number)

    async with app:
        await orders.publish_many(map(Order, range(6)))
        async with app.worker() as worker:
            await until(lambda: handled == [5])
            await worker.until_idle()
            assert worker.held == 0
            state = await app.inspector.queue(DEAD)
            assert (state.scheduled, state.running, state.dead) == (5, 0, 5)


@looped
async def test_another_worker_continues_the_attempts_on_a_dead_letter() -> None:
    app, orders = make()
    fail(orders)
    attempts: list[int] = []

    @orders.on_dead("billing", retry=RetryPolicy(1, delay=0.1))
    async def sorry(letter: DeadEvent[Order]) -> None:
        attempts.append(current_job().attempt)
        raise ValueError("boom")

    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until(lambda: attempts == [1])
        assert len(await app.dead.list()) == 1
        async with app.worker():
            await until_unhandled(app)
    assert attempts == [1, 2]


@looped
async def test_an_event_that_is_replayed_and_dies_again_is_handled_again() -> None:
    app, orders = make()
    fail(orders)
    attempts: list[int] = []

    @orders.on_dead("billing", retry=RetryPolicy(1, delay=0))
    async def sorry(letter: DeadEvent[Order]) -> None:
        attempts.append(current_job().attempt)
        if len(attempts) < 4:
            raise ValueError("boom")

    async with app:
        sent = await orders.publish(Order(1))
        async with app.worker():
            await until_unhandled(app)
            assert await app.dead.replay(sent) == [sent]
            await until_gone(app)
    assert attempts == [1, 2, 1, 2]


def test_the_first_failure_is_logged_with_its_traceback_and_the_last_says_the_letter_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @looped
    async def story() -> None:
        app, orders = make()
        fail(orders)

        @orders.on_dead("billing", retry=RetryPolicy(2, delay=0))
        async def sorry(letter: DeadEvent[Order]) -> None:
            raise ValueError("boom")

        async with app:
            await orders.publish(Order(1), id="o-1")
            async with app.worker():
                await until_unhandled(app)

    with caplog.at_level(logging.WARNING, "millstream.worker"):
        story()
    told = [record for record in caplog.records if "the handler of dead letter" in record.getMessage()]
    what = "the handler of dead letter o-1 ('orders/billing', attempt {} of 3)"
    show = "millstream dead show o-1 --queue orders/billing"
    assert [record.getMessage() for record in told] == [
        f"{what.format(1)} runs again in 0.0 s: ValueError: boom",
        f"{what.format(2)} runs again in 0.0 s: ValueError: boom",
        f"{what.format(3)} gave up, exhausted; the dead letter stays stored, marked as unhandled ({show}): ValueError: boom",
    ]
    assert [record.levelname for record in told] == ["WARNING", "WARNING", "ERROR"]
    assert [record.exc_info is not None for record in told] == [True, False, True]


@looped
async def test_observers_receive_each_failed_attempt_on_a_dead_letter() -> None:
    app, orders = make()
    fail(orders)
    problems: list[Problem] = []
    app.on_error(problems.append)

    @orders.on_dead("billing", retry=RetryPolicy(1, delay=0))
    async def sorry(letter: DeadEvent[Order]) -> None:
        raise ValueError("boom")

    async with app:
        await orders.publish(Order(1), id="o-1")
        async with app.worker():
            await until_unhandled(app)
            await until(lambda: len(problems) == 3)
    told = [(each.address, each.job_id, each.attempt, str(each.error)) for each in problems[1:]]
    assert told == [(DEAD, "o-1", 1, "boom"), (DEAD, "o-1", 2, "boom")]


@looped
async def test_a_dead_letter_handler_interrupted_by_a_shutdown_runs_again_elsewhere() -> None:
    app, orders = make(grace=0.05)
    fail(orders)
    begun: list[int] = []

    @orders.on_dead("billing")
    async def sorry(letter: DeadEvent[Order]) -> None:
        begun.append(current_job().crashes)
        if len(begun) == 1:
            await asyncio.Event().wait()

    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until(lambda: len(begun) == 1)
        assert len(await orders.group("billing").dead.list()) == 1
        async with app.worker():
            await until_gone(app)
    assert begun == [0, 0]


@looped
async def test_a_dead_letter_that_crashed_too_many_workers_stays_listed_and_is_not_handled_again() -> None:
    app, orders = make(max_crashes=1)
    fail(orders)
    handled: list[int] = []
    async with app:
        deadly = (await kill(app, Order(1), topic=orders))[0]
        broker = await app.broker()
        for life in ("first", "second"):
            await broker.join(DEAD, life, 30.0)
            assert len((await broker.claim(DEAD, life, 1, suspect_after=5)).entries) == 1
            await broker.leave(DEAD, life)

        @orders.on_dead("billing")
        async def sorry(letter: DeadEvent[Order]) -> None:
            handled.append(letter.event.number)

        await orders.publish(Order(2))
        async with app.worker() as worker:
            await until(lambda: handled == [2])
            await worker.until_idle()
        (left,) = await orders.group("billing").dead.list()
        assert (left.id, left.unhandled and left.unhandled.reason) == (deadly, "crashed")
        assert await orders.group("billing").dead.replay(deadly) == [deadly]


@looped
async def test_at_most_concurrency_dead_letters_are_handled_at_the_same_time() -> None:
    app, orders = make()
    fail(orders)
    running, most = 0, 0

    @orders.on_dead("billing", concurrency=2)
    async def sorry(letter: DeadEvent[Order]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    async with app:
        await orders.publish_many(map(Order, range(20)))
        async with app.worker():
            await until_gone(app, 20)
    assert most == 2


@looped
async def test_a_dead_letter_handler_can_replay_the_event_to_its_group() -> None:
    app, orders = make()
    billed: list[int] = []
    replayed: list[bool] = []
    ready = asyncio.Event()

    @orders.subscribe("billing")
    async def bill(order: Order, delivery: Delivery) -> None:
        if not ready.is_set():
            raise Reject("not yet")
        billed.append(delivery.attempt)

    @orders.on_dead("billing")
    async def once_more(letter: DeadEvent[Order]) -> None:
        ready.set()
        replayed.extend([await letter.replay(), await letter.replay()])

    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until(lambda: billed == [1])
            await until_gone(app)
        state = await app.inspector.queue(GROUP)
    assert replayed == [True, False]
    assert (state.dead, state.ready, state.running, state.totals["done"]) == (0, 0, 0, 1)


@looped
async def test_a_dead_letter_handler_in_a_thread_can_replay_the_event_too() -> None:
    app, orders = make()
    billed: list[int] = []
    letters: list[bool] = []

    @orders.subscribe("billing")
    async def bill(order: Order) -> None:
        if not letters:
            raise Reject("not yet")
        billed.append(order.number)

    @orders.on_dead("billing")
    def once_more(letter: DeadEvent[Order]) -> None:
        letters.append(True)
        assert letter.replay_sync()

    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until(lambda: billed == [1])
            await until_gone(app)
    assert letters == [True]


@looped
async def test_an_event_replayed_by_an_operator_while_its_dead_letter_is_handled_is_not_lost() -> None:
    app, orders = make()
    billed: list[int] = []
    begun, go = asyncio.Event(), asyncio.Event()

    @orders.subscribe("billing")
    async def bill(order: Order) -> None:
        if not begun.is_set():
            raise Reject("not yet")
        await go.wait()
        billed.append(order.number)

    @orders.on_dead("billing")
    async def sorry(letter: DeadEvent[Order]) -> None:
        begun.set()
        await go.wait()

    async with app:
        sent = await orders.publish(Order(1))
        async with app.worker():
            await begun.wait()
            assert [dead.id for dead in await app.dead.list()] == [sent]
            assert await app.dead.replay(sent) == [sent]
            go.set()
            await until(lambda: billed == [1])
            await until_gone(app)


@looped
async def test_a_malformed_event_is_handled_with_its_bytes_and_raises_when_it_is_decoded() -> None:
    app, orders = make()
    fail(orders)
    seen: list[tuple[str, bytes, str]] = []

    @orders.on_dead("billing")
    async def sorry(letter: DeadEvent[Order]) -> None:
        with pytest.raises(MalformedEvent) as error:
            letter.event  # noqa: B018
        seen.append((letter.reason, letter.payload, str(error.value)))

    async with app:
        broker = await app.broker()
        await broker.emit("orders", [Post("x", b"no message")])
        await app.topic("orders", Order).publish(Order(1))
        async with app.worker():
            await until(lambda: len(seen) >= 1)
    (found,) = [each for each in seen if each[0] == "malformed"]
    assert found[1] == b"no message" and "holds no event (malformed)" in found[2]


@looped
async def test_a_dead_event_whose_type_has_changed_raises_when_it_is_decoded() -> None:
    app, orders = make()
    fail(orders)
    seen: list[str] = []

    @orders.on_dead("billing")
    async def sorry(letter: DeadEvent[Order]) -> None:
        with pytest.raises(MalformedEvent, match=r"not a valid \S*Order"):
            letter.event  # noqa: B018
        seen.append(letter.reason)

    async with app:
        older: Topic[str] = Topic(orders.settings, app.topic("older", str).wire, orders._clients, app.settings, app._consume)
        await older.publish("an order, once")
        async with app.worker():
            await until_gone(app)
            await until(lambda: len(seen) == 1)
    assert seen == ["invalid_arguments"]


@looped
async def test_the_payload_of_a_dead_event_is_the_encoded_event() -> None:
    app = new_app(retry=RetryPolicy(0))
    orders = app.topic("orders", Order, codec="json")
    fail(orders)
    seen: list[bytes] = []

    @orders.on_dead("billing")
    async def sorry(letter: DeadEvent[Order]) -> None:
        assert letter.event == Order(1)
        seen.append(letter.payload)

    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until(lambda: len(seen) == 1)
    assert seen == [b'{"number":1,"customer":"ann"}']


@looped
async def test_a_paused_group_does_not_handle_its_dead_letters() -> None:
    app, orders = make()
    fail(orders)
    handled: list[str] = []
    async with app:
        await kill(app, Order(1), topic=orders)

        @orders.on_dead("billing")
        async def sorry(letter: DeadEvent[Order]) -> None:
            handled.append(letter.id)

        await orders.group("billing").pause()
        async with app.worker() as worker:
            await worker.until_idle()
            assert handled == []
            await orders.group("billing").resume()
            await until_gone(app)
    assert len(handled) == 1


@looped
async def test_a_worker_of_a_group_also_serves_its_dead_letters_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    app, orders = make()
    fail(orders)
    orders.subscribe("other")(ignore)
    orders.on_dead("billing")(ignore)
    assert app.queues_to_serve([]) == [GROUP, DEAD, "orders/other"]
    assert app.queues_to_serve([GROUP]) == [GROUP, DEAD]
    assert app.queues_to_serve(["orders/other", DEAD]) == ["orders/other", DEAD]
    with caplog.at_level(logging.INFO, "millstream.worker"):
        async with app.worker([GROUP]):
            pass
    assert f"serves '{GROUP}', the dead letters of '{GROUP}' with" in caplog.text


@looped
async def test_a_worker_is_idle_only_after_its_dead_letters_are_handled() -> None:
    app, orders = make()
    fail(orders)
    handled: list[str] = []

    @orders.on_dead("billing")
    async def sorry(letter: DeadEvent[Order]) -> None:
        await asyncio.sleep(0.01)
        handled.append(letter.id)

    async with app:
        await orders.publish_many(map(Order, range(5)))
        async with app.worker() as worker:
            await worker.until_idle()
        assert len(handled) == 5


# -- dead_letter -----------------------------------------------------------------------------------------------------------


def collect(topic: Topic[Order]) -> list[tuple[Order, Delivery]]:
    """Subscribe a group to the topic and collect its deliveries."""
    got: list[tuple[Order, Delivery]] = []

    @topic.subscribe("collect")
    async def note(order: Order, delivery: Delivery) -> None:
        got.append((order, delivery))

    return got


@looped
async def test_a_dead_event_is_forwarded_with_its_headers_and_its_origin() -> None:
    app, orders = make()
    spoilt = app.topic("spoilt", Order)
    fail(orders, dead_letter=spoilt)
    got = collect(spoilt)
    async with app:
        sent = await orders.publish(
            Order(7), headers={"tenant": "acme"}, key="k", correlation_id="c", traceparent="00-ab-cd-01"
        )
        async with app.worker():
            await until(lambda: len(got) == 1)
            await until_gone(app)
        assert await orders.group("billing").dead.list() == []
        assert (await app.inspector.topic("spoilt")).totals["published"] == 1
    ((order, delivery),) = got
    assert order == Order(7)
    assert (delivery.key, delivery.correlation_id, delivery.traceparent) == ("k", "c", "00-ab-cd-01")
    assert delivery.headers == {
        "tenant": "acme",
        "dead-reason": "rejected",
        "dead-error": "Reject: no money for 7",
        "dead-topic": "orders",
        "dead-group": "billing",
        "dead-id": sent,
        "dead-attempts": "1",
    }
    assert delivery.topic == "spoilt" and delivery.attempt == 1


@looped
async def test_many_older_dead_letters_are_forwarded_once_each_by_several_workers() -> None:
    app, orders = make()
    spoilt = app.topic("spoilt", Order)
    fail(orders)
    got = collect(spoilt)
    async with app:
        await kill(app, *map(Order, range(250)), topic=orders)
        orders.dead_handlers["billing"] = Forwarder("orders", "billing", orders.wire, spoilt, orders._clients, app.settings)
        async with app.worker(), app.worker():
            await until_gone(app, 250)
            await until(lambda: len(got) == 250)
    assert sorted(order.number for order, _ in got) == list(range(250))


@looped
async def test_forwarding_keeps_the_bytes_between_topics_with_one_codec_and_reencodes_otherwise() -> None:
    app = new_app(retry=RetryPolicy(0))
    orders = app.topic("orders", Order, codec="json")
    same, other = app.topic("same", Order, codec="json"), app.topic("other", Order)
    payload = orders.wire.encode((Order(1),), {})
    spaced = payload.replace(b'"number":1', b'"number": 1').replace(payload[:2], bytes([payload[0], payload[1] + 1]), 1)
    assert orders.wire.own_bytes(same.wire.adopt(spaced, orders.wire)) == b'{"number": 1,"customer":"ann"}'
    assert other.wire.decode(other.wire.adopt(spaced, orders.wire)) == Order(1)
    fail(orders, dead_letter=other)
    got = collect(other)
    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until(lambda: len(got) == 1)
    assert got[0][0] == Order(1)


@looped
async def test_dead_letters_that_cannot_be_decoded_stay_listed_and_the_others_are_forwarded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, orders = make()
    spoilt = app.topic("spoilt", Order)
    fail(orders, dead_letter=spoilt, max_payload_bytes=200)
    got = collect(spoilt)
    async with app:
        broker = await app.broker()
        older: Topic[str] = Topic(orders.settings, app.topic("older", str).wire, orders._clients, app.settings, app._consume)
        await broker.emit("orders", [Post("x", b"no message")])
        await older.publish("an order, once", id="changed")
        await orders.publish(Order(1, "a" * 300), id="large")
        await orders.publish(Order(2))
        async with app.worker() as worker:
            await until(lambda: len(got) == 1)
            await until_dead(app, 3)
            await worker.until_idle()
        letters = await orders.group("billing").dead.list()
        assert all(letter.unhandled is not None and letter.unhandled.error for letter in letters)
        left = {dead.reason: dead.id for dead in letters}
        assert left.keys() == {"malformed", "invalid_arguments", "oversize"}
        assert (left["invalid_arguments"], left["oversize"]) == ("changed", "large")
        assert await orders.group("billing").dead.purge(["changed", "large"]) == ["changed", "large"]
    assert "'changed'" in caplog.text and "stays in the list" in caplog.text


@looped
async def test_forwarding_to_a_full_topic_waits_without_losing_or_duplicating_events(caplog: pytest.LogCaptureFixture) -> None:
    app, orders = make()
    spoilt = app.topic("spoilt", Order, max_length=2)
    fail(orders, dead_letter=spoilt)
    async with app:
        await orders.publish_many(map(Order, range(5)))
        async with app.worker([GROUP]):
            await until_dead(app, 3)
            await until(lambda: "wait for topic 'spoilt'" in caplog.text)
        assert len(await orders.group("billing").dead.list()) == 3
        got = collect(spoilt)
        async with app.worker():
            await until(lambda: len(got) == 5)
            await until_gone(app, 5)
        assert (await app.inspector.topic("spoilt")).totals["published"] == 5
    assert sorted(order.number for order, _ in got) == list(range(5))


@looped
async def test_a_worker_that_waits_for_a_full_topic_stops_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "PAUSES", (10 * PATIENCE,))
    app, orders = make(grace=10 * PATIENCE)
    spoilt = app.topic("spoilt", Order, max_length=1)
    fail(orders, dead_letter=spoilt)
    async with app:
        await spoilt.publish(Order(0))
        await orders.publish(Order(1))
        async with app.worker():
            await until_dead(app, 1)

            async def held() -> bool:
                return (await app.inspector.queue(DEAD)).running == 1

            await until_so(held)
        state = await app.inspector.queue(DEAD)
        assert (state.ready, state.running, state.dead, state.consumers) == (1, 0, 1, 0)


@looped
async def test_an_event_forwarded_just_before_its_worker_died_is_not_published_twice() -> None:
    app, orders = make()
    spoilt = app.topic("spoilt", Order)
    fail(orders, dead_letter=spoilt)
    got = collect(spoilt)
    forwarder = orders.dead_handlers["billing"]
    assert isinstance(forwarder, Forwarder)
    async with app:
        broker = await app.broker()
        orders.dead_handlers.clear()
        await kill(app, Order(1), topic=orders)
        await broker.join(DEAD, "mover", 30.0)
        (entry,) = (await broker.claim(DEAD, "mover", 1)).entries
        _, post = forwarder._post(decode_letter(decode_message(entry.body or b"").args))
        await broker.emit("spoilt", [post])
        await broker.leave(DEAD, "mover")
        orders.dead_handlers["billing"] = forwarder
        async with app.worker():
            await until_gone(app)
            await until(lambda: len(got) == 1)
        assert (await app.inspector.topic("spoilt")).totals["published"] == 1


# -- invalid declarations --------------------------------------------------------------------------------------------------


@looped
async def test_invalid_declarations_are_refused_by_name() -> None:
    app, orders = make()
    spoilt, numbers = app.topic("spoilt", Order), app.topic("numbers", int)
    elsewhere = make()[0].topic("spoilt", Order)
    bad: Any = orders
    for target, said in [("spoilt", "must be a topic"), (numbers, "of type"), (orders, "itself"), (elsewhere, "another app")]:
        with pytest.raises(UsageError, match=said):
            bad.subscribe("x", dead_letter=target)
    with pytest.raises(UsageError, match="keep_expired must be True or False, not 'yes'"):
        bad.subscribe("x", keep_expired="yes")(ignore)
    with pytest.raises(UsageError, match="has 2 required parameters"):
        bad.on_dead("billing")(lambda letter, delivery: None)
    with pytest.raises(UsageError, match="not 3"):
        bad.on_dead("billing")(3)
    with pytest.raises(UsageError, match="no option max_crashes=3: the options are concurrency, retry, timeout"):
        bad.on_dead("billing", max_crashes=3)(ignore)
    with pytest.raises(UsageError, match="retry"):
        bad.on_dead("billing", retry=-1)(ignore)
    with pytest.raises(UsageError, match="timeout"):
        bad.on_dead("billing", timeout=0)(ignore)
    with pytest.raises(UsageError, match="group"):
        bad.on_dead("a:b")(ignore)

    orders.on_dead("billing")(ignore)
    with pytest.raises(UsageError, match="go to one handler or to one topic"):
        orders.on_dead("billing")(ignore)
    with pytest.raises(UsageError, match="go to one handler or to one topic"):
        fail(orders, dead_letter=spoilt)
    with pytest.raises(UsageError, match=r"on_dead\('billing'\) of topic 'orders': the topic has no subscription"):
        app.load()
    fail(orders)
    app.load()
    orders.subscribe("moved", dead_letter=spoilt)(ignore)
    with pytest.raises(UsageError, match="forwarder"):
        orders.on_dead("moved")(ignore)


# -- keep_expired ----------------------------------------------------------------------------------------------------------


@looped
async def test_with_keep_expired_an_expired_event_becomes_a_dead_letter_and_can_be_replayed() -> None:
    app, orders = make()
    kept: list[int] = []
    other: list[int] = []

    @orders.subscribe("billing", keep_expired=True)
    async def bill(order: Order) -> None:
        kept.append(order.number)

    @orders.subscribe("other")
    async def note(order: Order) -> None:
        other.append(order.number)

    async with app:
        sent = await orders.publish(Order(1), expires=0.001)
        await asyncio.sleep(0.01)  # lets the event expire
        await orders.publish(Order(2))
        async with app.worker():
            await until(lambda: kept == [2] and other == [2])
            await until_dead(app, 1)
        (dead,) = await orders.group("billing").dead.list()
        assert (dead.id, dead.reason, dead.attempts, dead.error_type) == (sent, "expired", 0, "Expired")
        assert (await app.inspector.queue(GROUP)).totals["expired"] == 0
        assert await orders.group("other").dead.list() == []
        assert (await app.inspector.queue("orders/other")).totals["expired"] == 1
        assert await orders.group("billing").dead.replay(sent) == [sent]
        async with app.worker():
            await until(lambda: kept == [2, 1])
