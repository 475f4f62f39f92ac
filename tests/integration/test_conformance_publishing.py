"""What an event bus is expected to accept, refuse and transport: the rows about publishing in docs/conformance.md."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from millstream import Delivery, Millstream, Topic
from millstream.backends.redis import RedisBroker
from millstream.client import outbox
from millstream.codec import CodecName, EventCodec
from millstream.errors import BrokerUnavailable, BulkError, PayloadTooLarge, TopicFull, UsageError
from millstream.model.invalid import InvalidArguments
from tests.stage import PATIENCE, looped, new_app, place

pytestmark = pytest.mark.usefixtures("every_backend")


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.001)


async def length(app: Millstream, topic: str = "numbers") -> int:
    return (await app.inspector.topic(topic)).length


# -- names -----------------------------------------------------------------------------------------------------------------

CONTROL = ["a\x00b", "a\x7fb", "a\x85b", "a\ud800b"]
BAD_NAMES: list[Any] = ["", " ", "\t\n", *CONTROL, "x" * 201, "a:b", "a{b", "a}b", "a>b", "a/b", 5, None]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_an_invalid_name_is_refused_at_declaration(name: Any) -> None:
    app = new_app()
    with pytest.raises(UsageError, match="topic"):
        app.topic(name, int)
    topic = app.topic("numbers", int)
    with pytest.raises(UsageError, match="group"):
        topic.subscribe(name)(lambda _: None)
    with pytest.raises(UsageError, match="group"):
        topic.group(name)
    assert topic.subscriptions == {}


@looped
async def test_a_name_may_have_200_characters_of_any_alphabet() -> None:
    app = new_app()
    seen: list[str] = []
    for name in ("x" * 200, "orders.eu-1", "größe 価格"):
        topic = app.topic(name, int)

        @topic.subscribe(name)
        async def handle(number: int, delivery: Delivery) -> None:
            seen.append(delivery.group)

    async with app:
        for topic in list(app.topics.values()):
            await topic.publish(1)
        async with app.worker():
            await until(lambda: len(seen) == 3)
    assert set(seen) == set(app.topics)


def test_a_topic_is_one_object_with_one_type_and_one_codec() -> None:
    app = new_app()
    topic: Topic[Any] = app.topic("counts", dict[str, int])
    assert app.topic("counts", dict[str, int]) is topic
    with pytest.raises(UsageError, match=r"'counts'.*codec"):
        app.topic("counts", dict[str, int], codec="json")
    with pytest.raises(UsageError, match=r"'counts'.*type"):
        app.topic("counts", dict[str, str])


# -- options ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"id": ""}, "id"),
        ({"id": "x" * 201}, "id"),
        ({"id": "a\nb"}, "id"),
        ({"delay": -1}, "delay"),
        ({"delay": float("nan")}, "delay"),
        ({"expires": 0}, "expires"),
        ({"delay": 5, "expires": 5}, "never be handled"),
        ({"headers": {"a": 1}}, "headers"),
        ({"headers": {"a": "\ud800"}}, "UTF-8"),
        ({"traceparent": "0" * 256}, "traceparent"),
        ({"kind": None}, "kind"),
        ({"guarantee": "exactly-once"}, "guarantee"),
    ],
)
def test_an_option_that_can_never_work_is_refused_and_nothing_is_written(options: dict[str, Any], says: str) -> None:
    async def main() -> None:
        app = new_app()
        topic = app.topic("numbers", int)
        async with app:
            with pytest.raises(UsageError, match=says):
                await topic.publish(1, **options)
            with pytest.raises(UsageError, match=says):
                topic.bind(1, **options)
            assert await length(app) == 0

    looped(main)()


@looped
async def test_headers_count_towards_the_payload_limit() -> None:
    app = new_app(max_payload_bytes=100)
    topic = app.topic("numbers", int)
    async with app:
        await topic.publish(1, headers={"a": "x" * 80})
        with pytest.raises(PayloadTooLarge, match="headers"):
            await topic.publish(1, headers={"a": "x" * 100})
        assert await length(app) == 1


@looped
async def test_options_of_publish_many_apply_to_events_without_their_own_options() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    seen: dict[int, tuple[dict[str, str], str]] = {}

    @topic.subscribe("g")
    async def handle(number: int, delivery: Delivery) -> None:
        seen[number] = (dict(delivery.headers), delivery.kind)

    events: list[Any] = [1, topic.bind(2, headers={"own": "2"}), topic.bind(3), 4]
    async with app:
        await topic.publish_many(events, headers={"tenant": "acme"}, kind="counted")
        async with app.worker():
            await until(lambda: len(seen) == 4)
    common = ({"tenant": "acme"}, "counted")
    assert seen == {1: common, 2: ({"own": "2"}, ""), 3: ({}, ""), 4: common}


@looped
async def test_publishing_a_delayed_event_returns_immediately() -> None:
    """The server keeps the delay: the publisher may exit before it is over."""
    app = new_app()
    topic = app.topic("numbers", int)
    async with app:
        await topic.publish(1, delay=100_000)
        await topic.publish_many([2, 3], delay=100_000)
    async with app:
        assert (await app.inspector.topic("numbers")).delayed == 3


# -- publish_many ----------------------------------------------------------------------------------------------------------


@looped
async def test_publish_many_accepts_any_iterable_and_keeps_its_order() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    told: list[int] = []

    @topic.subscribe("g", concurrency=1)
    async def handle(number: int) -> None:
        told.append(number)

    def counted() -> Iterator[int]:
        yield from range(1000)

    async with app:
        ids = await topic.publish_many(counted())
        assert len(set(ids)) == 1000
        async with app.worker():
            await until(lambda: len(told) == 1000)
    assert told == list(range(1000))


@looped
async def test_publish_many_returns_the_id_or_the_error_of_each_event_at_its_position() -> None:
    app = new_app(max_payload_bytes=50)
    topic: Topic[Any] = app.topic("texts", str)
    full: Topic[Any] = app.topic("full", int, max_length=2)
    async with app:
        with pytest.raises(BulkError, match="2 of 4") as caught:
            await topic.publish_many(["a", 5, "b" * 60, "c"])
        assert [type(result).__name__ for result in caught.value.results] == ["Job", "TypeError", "PayloadTooLarge", "Job"]
        assert {place: type(error) for place, error in caught.value.failed.items()} == {1: TypeError, 2: PayloadTooLarge}
        assert await length(app, "texts") == 2
        results = await full.publish_many([1, 2, 3], return_exceptions=True)
        assert [type(result) for result in results] == [str, str, TopicFull]
        assert await topic.publish_many([]) == []


@looped
async def test_an_event_bound_to_another_topic_is_refused_at_its_position() -> None:
    app = new_app()
    topic, other = app.topic("numbers", int), app.topic("others", int)
    async with app:
        results = await topic.publish_many([1, other.bind(2), topic.bind(3)], return_exceptions=True)
        assert [type(result) for result in results] == [str, TypeError, str]
        assert "bound for topic 'others'" in str(results[1])
        assert (await length(app), await length(app, "others")) == (2, 0)


class LostReplies:
    """A broker that accepts events but loses the replies."""

    def __init__(self, broker: Any, monkeypatch: pytest.MonkeyPatch, *, lost: int) -> None:
        self.lost = lost
        self._emit = broker.emit
        monkeypatch.setattr(broker, "emit", self.emit)

    async def emit(self, *args: Any, **options: Any) -> Any:
        receipts = await self._emit(*args, **options)
        if self.lost:
            self.lost -= 1
            raise BrokerUnavailable("the reply was lost")
        return receipts


@looped
async def test_events_whose_reply_was_lost_are_sent_again_and_accepted_once() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    with pytest.MonkeyPatch.context() as monkeypatch:
        LostReplies(await app.broker(), monkeypatch, lost=2)
        await topic.publish(0)
        await topic.publish_many(range(1, 500))
        await topic.publish_many([topic.bind(n, id=f"given-{n}") for n in range(500, 600)])
    assert (await length(app), (await app.inspector.topic("numbers")).totals) == (600, {"published": 600})


@looped
async def test_an_event_that_may_have_been_accepted_can_be_published_again_with_its_id() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    with pytest.MonkeyPatch.context() as monkeypatch:
        replies = LostReplies(await app.broker(), monkeypatch, lost=1000)
        with monkeypatch.context() as hasty, pytest.raises(BrokerUnavailable) as caught:
            hasty.setattr(outbox, "PATIENCE_SECONDS", 0.2)
            await topic.publish(1)
        replies.lost = 0
        assert caught.value.job_id is not None
        assert await topic.publish(1, id=caught.value.job_id) == caught.value.job_id
    assert await length(app) == 1


@looped
async def test_an_event_id_is_unique_across_apps_on_the_same_server() -> None:
    url = place.url if place.url != "memory://" else f"memory://{secrets.token_hex(4)}"
    namespace = f"test-{secrets.token_hex(6)}"
    apps = [Millstream(url, namespace=namespace) for _ in range(3)]
    async with apps[0], apps[1], apps[2]:
        for app in apps:
            assert await app.topic("numbers", int).publish(1, id="one") == "one"
            ids = await app.topic("numbers", int).publish_many(app.topic("numbers", int).bind(n, id=str(n)) for n in range(50))
            assert ids == [str(n) for n in range(50)]
        assert await length(apps[0]) == 51


@looped
async def test_many_publishes_share_one_connection() -> None:
    app = new_app()
    topic = app.topic("numbers", int)
    async with app:
        broker = await app.broker()
        if not isinstance(broker, RedisBroker):
            return

        async def accepted() -> int:
            told: bytes = await broker._calls.node(None).commands.call("INFO", "stats")
            return int(told.split(b"total_connections_received:")[1].split()[0])

        await topic.publish(0)
        before = await accepted()
        await asyncio.gather(*(topic.publish(n) for n in range(100)))
        for n in range(100):
            await topic.publish(n)
        assert await accepted() == before


# -- codecs ----------------------------------------------------------------------------------------------------------------


class Shouting:
    """A user-defined codec that raises its own exceptions."""

    def encode(self, event: str) -> bytes:
        return event.upper().encode()

    def decode(self, data: bytes) -> str:
        if not data:
            raise LookupError("nothing there")
        return data.decode()


def wrapped(data: bytes) -> bytes:
    return msgspec.msgpack.encode(data)


@pytest.mark.parametrize(
    ("codec", "payload", "cause"),
    [
        ("msgpack", msgspec.msgpack.encode("hello")[:-1], msgspec.DecodeError),
        ("msgpack", b"\xa2\xff\xfe", Exception),
        ("msgpack", b"", msgspec.DecodeError),
        ("msgpack", msgspec.msgpack.encode(5), msgspec.ValidationError),
        ("json", wrapped(b'"hel'), msgspec.DecodeError),
        ("json", wrapped(b'"\xff\xfe"'), Exception),
        ("json", wrapped(b""), msgspec.DecodeError),
        ("json", b"", msgspec.DecodeError),
        (Shouting(), wrapped(b""), LookupError),
        (Shouting(), wrapped(b"\xff"), UnicodeDecodeError),
    ],
)
def test_undecodable_bytes_raise_invalid_arguments_with_their_cause(codec: Any, payload: bytes, cause: type[Exception]) -> None:
    with pytest.raises(InvalidArguments) as caught:
        EventCodec("texts", str, codec).decode(payload)
    assert isinstance(caught.value.__cause__, cause)


def test_bytes_arrive_unchanged_with_every_codec() -> None:
    every = bytes(range(256))
    names: tuple[CodecName, ...] = ("msgpack", "raw")
    for codec in names:
        wire = EventCodec("bytes", bytes, codec)
        assert wire.decode(wire.encode((every,), {})) == every


@pytest.mark.parametrize("codec", ["msgpack", "json", Shouting()])
def test_an_event_that_cannot_be_encoded_is_refused_and_its_topic_is_named(codec: Any) -> None:
    wire = EventCodec("texts", str, codec)
    with pytest.raises(TypeError, match="'texts'"):
        wire.encode((object(),), {})
