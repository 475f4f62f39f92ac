"""What an event bus is expected to do with delivered events: the rows about consuming in docs/conformance.md."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from millstream import Batch, Delivery, Millstream, Reject, RetryPolicy, Snooze, Topic
from millstream.broker import Post
from millstream.errors import BrokerError, UsageError
from millstream.model.address import Address
from millstream.model.message import Message, encode_message
from millstream.model.outcome import Kind, Outcome
from tests.stage import PATIENCE, looped, new_app, until, until_idle

pytestmark = pytest.mark.usefixtures("every_backend")

SOON = RetryPolicy(2, delay=0.001, jitter=False)


async def emit_raw(app: Millstream, topic: str, *bodies: bytes) -> None:
    """Publish bodies that no codec of ours has encoded."""
    broker = await app.broker()
    await broker.emit(topic, [Post(f"raw-{n}", body) for n, body in enumerate(bodies)])


def body_of(topic: str, args: Any) -> bytes:
    return encode_message(Message("wrong", topic, msgspec.Raw(msgspec.msgpack.encode(args)), 0))


# -- handlers --------------------------------------------------------------------------------------------------------------


@looped
async def test_a_handler_belongs_to_a_topic_and_group_and_may_serve_several() -> None:
    app = new_app()
    first, second = app.topic("first", int), app.topic("second", int)
    seen: list[tuple[str, str, int]] = []

    async def note(number: int, delivery: Delivery) -> None:
        seen.append((delivery.topic, delivery.group, number))

    for topic, group in ((first, "a"), (first, "b"), (second, "a")):
        assert topic.subscribe(group)(note) is note, "subscribe returns the function unchanged"
    async with app:
        await first.publish(1)
        await second.publish(2)
        async with app.worker():
            await until(lambda: len(seen) == 3)
    assert sorted(seen) == [("first", "a", 1), ("first", "b", 1), ("second", "a", 2)]


class Keeping:
    """Handlers that are not functions."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    async def method(self, number: int) -> None:
        self.kept.append("method")

    async def partly(self, name: str, number: int) -> None:
        self.kept.append(name)


class Awaited(Keeping):
    async def __call__(self, number: int) -> None:
        await asyncio.sleep(0)
        self.kept.append("awaited")


class Called(Keeping):
    def __call__(self, number: int) -> None:
        self.kept.append("called")


@looped
async def test_a_handler_may_be_any_callable() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    awaited, called = Awaited(), Called()
    topic.subscribe("awaited")(awaited)
    topic.subscribe("called")(called)
    topic.subscribe("method")(awaited.method)
    topic.subscribe("partial")(functools.partial(awaited.partly, "partial"))
    async with app:
        await topic.publish(1)
        async with app.worker():
            await until(lambda: len(awaited.kept) == 3 and called.kept == ["called"])
    assert sorted(awaited.kept) == ["awaited", "method", "partial"]


@pytest.mark.parametrize("batch", [None, Batch(1)])
def test_a_plain_function_that_returns_a_coroutine_fails_and_its_event_is_kept(batch: Any) -> None:
    async def main() -> None:
        app = new_app(retry=0)
        topic = app.topic("numbers", int)

        async def handle(_: Any) -> None: ...

        def forgetful(event: Any) -> Any:
            return handle(event)

        topic.subscribe("g", batch=batch)(forgetful)
        async with app:
            await topic.publish(1)
            async with app.worker():
                await until_idle(app, Address("numbers/g"))
            (dead,) = await topic.group("g").dead.list()
        assert (dead.reason, dead.error_type) == ("exhausted", "TypeError")
        assert "async def" in dead.error

    looped(main)()


@looped
async def test_every_delivery_has_the_state_of_the_lifespan() -> None:
    seen: list[Any] = []

    @asynccontextmanager
    async def lifespan(_: Millstream) -> AsyncGenerator[dict[str, int]]:
        yield {"answer": 42}

    app = new_app(lifespan=lifespan)
    topic = app.topic("numbers", int)

    @topic.subscribe("g")
    async def handle(number: int, delivery: Delivery) -> None:
        seen.append(delivery.state["answer"])

    async with app:
        await topic.publish(1)
        async with app.worker():
            await until(lambda: seen == [42])


@looped
async def test_every_group_of_every_topic_exists_once_its_app_is_connected() -> None:
    app = new_app()
    for name in ("first", "second"):
        for group in ("a", "b"):
            app.topic(name, int).subscribe(group)(lambda _: None)
    async with app:
        await app.topic("first", int).publish(1)
        for name in ("first", "second"):
            assert [group.name for group in (await app.inspector.topic(name)).groups] == ["a", "b"]


# -- retry, snooze, reject -------------------------------------------------------------------------------------------------


class Settled:
    """Records the outcomes that a worker settles."""

    def __init__(self) -> None:
        self.calls = 0
        self.outcomes: list[tuple[str, Outcome]] = []

    @classmethod
    async def tap(cls, app: Millstream) -> Settled:
        tap, broker = cls(), await app.broker()
        settle = broker.settle

        async def listen(queue: Address, consumer: str, outcomes: Any) -> int:
            tap.calls += 1
            tap.outcomes += [(queue, outcome) for outcome in outcomes]
            return await settle(queue, consumer, outcomes)

        broker.settle = listen  # type: ignore[method-assign]
        return tap

    def delays(self, queue: Address) -> list[float]:
        return [outcome.delay for name, outcome in self.outcomes if name == queue and outcome.kind is Kind.RETRY]


@looped
async def test_each_group_has_its_own_retry_delays_and_the_last_delay_repeats() -> None:
    app = new_app()
    topic = app.topic("numbers", int)

    async def fail(number: int) -> None:
        raise ValueError(number)

    topic.subscribe("slow", retry=RetryPolicy(4, delays=(0.001, 0.004, 0.002)))(fail)
    topic.subscribe("quick", retry=RetryPolicy(1, delays=(0.003,)))(fail)
    async with app:
        tap = await Settled.tap(app)
        await topic.publish(1)
        async with app.worker():
            await until_idle(app, Address("numbers/slow"))
            await until_idle(app, Address("numbers/quick"))
        assert tap.delays(Address("numbers/slow")) == [0.001, 0.004, 0.002, 0.002]
        assert tap.delays(Address("numbers/quick")) == [0.003]
        assert [dead.attempts for dead in await app.dead.list()] in ([2, 5], [5, 2])


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_n_retries_make_n_plus_one_attempts_and_then_the_event_is_dead(retries: int) -> None:
    async def main() -> None:
        app = new_app(retry=SOON)
        topic = app.topic("numbers", int)
        attempts: list[tuple[int, int]] = []

        @topic.subscribe("g", retry=retries)
        async def fail(number: int, delivery: Delivery) -> None:
            attempts.append((delivery.attempt, delivery.max_attempts))
            raise ValueError("no")

        async with app:
            await topic.publish(1)
            async with app.worker():
                await until_idle(app, Address("numbers/g"))
            (dead,) = await topic.group("g").dead.list()
        assert attempts == [(n + 1, retries + 1) for n in range(retries + 1)]
        assert (dead.reason, dead.attempts, dead.error) == ("exhausted", retries + 1, "no")
        assert "ValueError" in dead.traceback

    looped(main)()


@looped
async def test_an_explicit_retry_after_the_last_attempt_makes_the_event_dead() -> None:
    app = new_app(retry=SOON)
    topic = app.topic("numbers", int)
    attempts: list[int] = []

    @topic.subscribe("g")
    async def again(number: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        delivery.retry(0)

    async with app:
        await topic.publish(1)
        async with app.worker():
            await until_idle(app, Address("numbers/g"))
        (dead,) = await topic.group("g").dead.list()
    assert attempts == [1, 2, 3]
    assert dead.reason == "exhausted"


@looped
async def test_an_event_may_be_snoozed_more_often_than_it_may_fail() -> None:
    app = new_app(retry=0)
    topic = app.topic("numbers", int)
    attempts: list[int] = []

    @topic.subscribe("g")
    async def later(number: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) < 6:
            raise Snooze(0)

    async with app:
        await topic.publish(1)
        async with app.worker():
            await until_idle(app, Address("numbers/g"))
        assert await topic.group("g").dead.list() == []
    assert attempts == [1] * 6


@looped
async def test_a_rejected_event_is_dead_immediately_with_its_reason() -> None:
    app = new_app(retry=5)
    topic = app.topic("numbers", int)
    runs: list[int] = []

    @topic.subscribe("g")
    def refuse(number: int) -> None:
        runs.append(number)
        raise Reject("not mine")

    async with app:
        await topic.publish(1)
        async with app.worker():
            await until_idle(app, Address("numbers/g"))
        (dead,) = await topic.group("g").dead.list()
    assert runs == [1]
    assert (dead.reason, dead.error, dead.queue, dead.attempts) == ("rejected", "not mine", "numbers/g", 1)
    assert dead.entry, "the dead letter names its entry"


@looped
async def test_headers_of_any_name_are_delivered_unchanged_through_retries_and_replays() -> None:
    headers = {
        "x-retry-count": "7",
        "X-Death-Reason": "none",
        "x-message-id": "theirs",
        "retry-attempt": "9",
        "tracestate": "vendor=1",
        "baggage": "user=ann",
        "": "even without a name",
    }
    app = new_app(retry=SOON)
    topic = app.topic("numbers", int)
    seen: list[tuple[int, dict[str, str]]] = []

    @topic.subscribe("g")
    async def fail(number: int, delivery: Delivery) -> None:
        seen.append((delivery.attempt, dict(delivery.headers)))
        raise ValueError("again")

    async with app:
        event_id = await topic.publish(1, headers=headers)
        async with app.worker():
            await until_idle(app, Address("numbers/g"))
            await topic.group("g").dead.replay(event_id)
            await until(lambda: len(seen) == 6)
            await until_idle(app, Address("numbers/g"))
    assert seen == [(attempt, headers) for attempt in (1, 2, 3, 1, 2, 3)]


@looped
async def test_a_delivery_has_the_expiry_of_its_event() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    seen: list[datetime | None] = []

    @topic.subscribe("g", concurrency=1)
    async def handle(number: int, delivery: Delivery) -> None:
        seen.append(delivery.expires_at)

    async with app:
        await topic.publish(1, expires=3600)
        await topic.publish(2)
        async with app.worker():
            await until(lambda: len(seen) == 2)
    assert seen[1] is None
    assert seen[0] is not None and abs(seen[0] - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=5)


# -- timeouts --------------------------------------------------------------------------------------------------------------


@looped
async def test_an_event_past_its_timeout_uses_an_attempt_and_is_finally_dead() -> None:
    app = new_app(retry=RetryPolicy(1, delay=0.001, jitter=False))
    topic = app.topic("numbers", int)
    attempts: list[int] = []

    @topic.subscribe("g", timeout=0.05)
    async def hang(number: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        await asyncio.Event().wait()

    async with app:
        await topic.publish(1)
        async with app.worker():
            await until_idle(app, Address("numbers/g"))
        (dead,) = await topic.group("g").dead.list()
    assert attempts == [1, 2]
    assert (dead.reason, dead.attempts) == ("timeout", 2)


@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_an_explicit_outcome_takes_precedence_over_a_timeout(verb: str) -> None:
    async def main() -> None:
        app = new_app(retry=SOON)
        topic = app.topic("numbers", int)
        runs: list[int] = []

        @topic.subscribe("g", timeout=0.05)
        async def hang(number: int, delivery: Delivery) -> None:
            runs.append(number)
            delivery.ack() if verb == "ack" else delivery.nack("spoilt")
            await asyncio.Event().wait()

        async with app:
            await topic.publish(1)
            async with app.worker():
                await until_idle(app, Address("numbers/g"))
            assert [dead.error for dead in await topic.group("g").dead.list()] == (["spoilt"] if verb == "nack" else [])
        assert runs == [1]

    looped(main)()


def test_a_groups_options_override_those_of_the_app_which_override_the_defaults() -> None:
    plain, set_up = new_app(), new_app(timeout=7, retry=4, max_crashes=2, max_payload_bytes=99)
    for app, expected in ((plain, (1800.0, 8, 3, 1 << 20)), (set_up, (7.0, 4, 2, 99))):
        topic = app.topic("numbers", int)
        topic.subscribe("inherits")(lambda _: None)
        topic.subscribe("own", timeout=None, retry=1, max_crashes=0, max_payload_bytes=None)(lambda _: None)
        found = {
            name: (s.settings.timeout, s.settings.retry.max_retries, s.settings.max_crashes, s.settings.max_payload_bytes)
            for name, s in topic.subscriptions.items()
        }
        assert found == {"inherits": expected, "own": (0.0, 1, 0, None)}
        assert topic.subscriptions["inherits"].ack == "on_success"


@pytest.mark.parametrize(
    "option",
    [{"timeout": 0}, {"concurrency": 0}, {"retry": -1}, {"max_crashes": -1}, {"max_payload_bytes": 0}, {"batch": 5}],
)
def test_an_invalid_option_is_refused_by_name(option: dict[str, Any]) -> None:
    topic: Topic[Any] = new_app().topic("numbers", int)
    with pytest.raises(UsageError, match=next(iter(option))):
        topic.subscribe("g", **option)(lambda _: None)
    assert topic.subscriptions == {}


# -- events that cannot be handled -----------------------------------------------------------------------------------------

HOW = [("on_success", None), ("on_receive", None), ("on_success", Batch(10, wait=0.01)), ("on_receive", Batch(10, wait=0.01))]


@pytest.mark.parametrize(("ack", "batch"), HOW)
def test_undecodable_events_become_dead_letters_with_their_bytes_and_the_others_are_handled(ack: Any, batch: Any) -> None:
    async def main() -> None:
        app = new_app()
        topic: Topic[Any] = app.topic("numbers", int)
        seen: list[int] = []

        async def handle(event: Any) -> None:
            seen.extend([event] if batch is None else event)

        topic.subscribe("g", ack=ack, batch=batch)(handle)
        garbage = [b"\xc1 no msgpack", b"", b"\xff" * 10]
        async with app:
            await topic.publish(1)
            await emit_raw(app, "numbers", *garbage, body_of("numbers", "no number"))
            await topic.publish_many([2, 3])
            async with app.worker():
                await until(lambda: len(seen) == 3)
                await until_idle(app, Address("numbers/g"))
            letters = await app.inspector.dead_letters("numbers/g")
            totals = (await app.inspector.queue("numbers/g")).totals
        assert sorted(seen) == [1, 2, 3]
        assert [letter.body for letter in letters if letter.reason == "malformed"] == garbage
        (other,) = [letter for letter in letters if letter.reason != "malformed"]
        assert (other.reason, other.attempts) == ("invalid_arguments", 1)
        assert (totals["done"], totals["dead"], totals["retried"]) == (3, 4, 0)

    looped(main)()


@pytest.mark.parametrize("ack", ["on_success", "on_receive"])
def test_an_event_over_the_size_limit_of_a_group_is_dead_only_in_that_group(ack: Any) -> None:
    async def main() -> None:
        app = new_app()
        topic = app.topic("texts", str)
        narrow: list[str] = []
        wide: list[str] = []
        exact = "x" * 18

        @topic.subscribe("narrow", max_payload_bytes=len(msgspec.msgpack.encode(exact)), ack=ack)
        async def take(text: str) -> None:
            narrow.append(text)

        @topic.subscribe("wide")
        async def take_all(text: str) -> None:
            wide.append(text)

        async with app:
            await topic.publish_many([exact, exact + "x"])
            async with app.worker():
                await until(lambda: len(wide) == 2)
                await until_idle(app, Address("texts/narrow"))
            (dead,) = await topic.group("narrow").dead.list()
            assert await topic.group("wide").dead.list() == []
        assert narrow == [exact]
        assert dead.reason == "oversize"

    looped(main)()


# -- concurrency -----------------------------------------------------------------------------------------------------------


@looped
async def test_a_slow_event_does_not_delay_the_settling_of_others() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    gate = asyncio.Event()

    @topic.subscribe("g")
    async def handle(number: int) -> None:
        if number == 0:
            await gate.wait()

    async with app:
        await topic.publish_many(range(20))
        async with app.worker(), asyncio.timeout(PATIENCE):
            while (await app.inspector.queue("numbers/g")).totals["done"] < 19:
                await asyncio.sleep(0.001)
            assert (await app.inspector.queue("numbers/g")).running == 1
            gate.set()
            await until_idle(app, Address("numbers/g"))


@looped
async def test_a_group_with_concurrency_1_claims_one_event_at_a_time() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    held: list[int] = []
    order: list[int] = []

    @topic.subscribe("g", concurrency=1)
    async def handle(number: int) -> None:
        held.append((await app.inspector.queue("numbers/g")).running)
        order.append(number)

    async with app:
        await topic.publish_many(range(30))
        async with app.worker(concurrency=10):
            await until(lambda: len(order) == 30)
    assert order == list(range(30))
    assert set(held) == {1}


@looped
async def test_a_worker_is_one_consumer_of_a_group_whatever_its_concurrency() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    gate = asyncio.Event()
    running: list[int] = []

    @topic.subscribe("g")
    async def handle(number: int) -> None:
        running.append(number)
        await gate.wait()

    async with app:
        await topic.publish_many(range(40))
        async with app.worker(concurrency=20) as first, app.worker(concurrency=20) as second:
            assert first.id != second.id
            await until(lambda: len(running) == 40)
            (group,) = (await app.inspector.topic("numbers")).groups
            gate.set()
    assert group.consumers == 2
    async with app:
        assert (await app.inspector.topic("numbers")).groups[0].consumers == 0


@looped
async def test_outcomes_are_settled_in_batches_and_each_once() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    for ack in ("on_success", "on_receive"):

        @topic.subscribe(ack, ack=ack)
        async def handle(number: int) -> None: ...

    async with app:
        tap = await Settled.tap(app)
        await topic.publish_many(range(1000))
        async with app.worker(concurrency=100):
            for ack in ("on_success", "on_receive"):
                await until_idle(app, Address(f"numbers/{ack}"))
    assert len(tap.outcomes) == len({(queue, outcome.ref) for queue, outcome in tap.outcomes}) == 2000
    assert tap.calls <= 400


# -- ack="on_receive" ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("batch", [None, Batch(3, wait=0.01)])
def test_with_ack_on_receive_an_event_is_settled_before_its_handler_and_errors_do_not_retry_it(
    plain: bool, batch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[Any] = []

    async def main() -> None:
        app = new_app(retry=SOON)
        topic: Topic[Any] = app.topic("numbers", int)
        loop = asyncio.get_running_loop()
        done: list[int] = []

        async def look() -> None:
            done.append((await app.inspector.queue("numbers/g")).totals["done"])

        async def handle_async(event: Any) -> None:
            runs.append(event)
            await look()
            raise ValueError("too late")

        def handle(event: Any) -> None:
            runs.append(event)
            asyncio.run_coroutine_threadsafe(look(), loop).result()
            raise ValueError("too late")

        topic.subscribe("g", ack="on_receive", batch=batch)(handle if plain else handle_async)
        async with app:
            await topic.publish_many([1, 2, 3] if batch else [1])
            async with app.worker():
                await until(lambda: "failed after its outcome had been decided" in caplog.text)
                await until_idle(app, Address("numbers/g"))
            state = await app.inspector.queue("numbers/g")
        assert done == ([3] if batch else [1])
        assert (state.dead, state.totals["retried"]) == (0, 0)

    looped(main)()
    assert runs == ([[1, 2, 3]] if batch else [1])


@looped
async def test_with_ack_on_receive_unstarted_events_are_released_and_not_lost() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    gate = asyncio.Event()
    seen: list[int] = []

    @topic.subscribe("g", ack="on_receive")
    async def handle(number: int) -> None:
        seen.append(number)
        if number >= 2000:
            await gate.wait()

    async with app:
        await topic.publish_many(range(2300))
        async with app.worker(concurrency=4):
            await until(lambda: len(seen) == 2004)
            gate.set()
        handled = len(seen)
        state = await app.inspector.queue("numbers/g")
        assert (state.totals["done"], state.ready) == (handled, 2300 - handled)
        async with app.worker():
            await until(lambda: len(seen) == 2300)
    assert sorted(seen) == list(range(2300))


@looped
async def test_with_ack_on_receive_events_gathered_for_a_batch_are_released_on_shutdown() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    seen: list[int] = []

    @topic.subscribe("g", ack="on_receive", batch=Batch(100, wait=1000.0))
    async def handle(numbers: list[int]) -> None:
        seen.extend(numbers)

    async with app:
        await topic.publish_many(range(5))
        async with app.worker(), asyncio.timeout(PATIENCE):
            while (await app.inspector.queue("numbers/g")).running < 5:
                await asyncio.sleep(0.001)
        state = await app.inspector.queue("numbers/g")
    assert (seen, state.ready, state.totals["done"]) == ([], 5, 0)


@looped
async def test_with_ack_on_receive_a_timeout_cancels_the_handler_without_a_retry() -> None:
    app = new_app(retry=SOON)
    topic = app.topic("numbers", int)
    ended: list[str] = []

    @topic.subscribe("g", ack="on_receive", timeout=0.05)
    async def hang(number: int, delivery: Delivery) -> None:
        await delivery.settled()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(delivery.id)

    async with app:
        await topic.publish(1)
        async with app.worker():
            await until(lambda: len(ended) == 1)
        state = await app.inspector.queue("numbers/g")
    assert (state.scheduled, state.dead, state.totals["done"]) == (0, 0, 1)


# -- errors that would otherwise go unnoticed ------------------------------------------------------------------------------


@looped
async def test_an_outcome_refused_by_the_server_raises_when_the_consumer_is_closed() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    async with app:
        broker = await app.broker()
        refused = asyncio.Event()

        async def refuse(*_: Any) -> int:
            refused.set()
            raise BrokerError("the server would not have it")

        async def handle(number: int) -> None: ...

        await topic.publish(1)
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(broker, "settle", refuse)
            consumer = await topic.consume("g", handle)
            await refused.wait()
            with pytest.raises(BrokerError, match="would not have it"):
                await consumer.close()
        assert (await app.inspector.queue("numbers/g")).ready == 1, "the event is ready again"
