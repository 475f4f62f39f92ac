"""codec="fields": entries that other programs write to a topic's stream with a plain XADD are read as events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from millstream import Batch, Delivery, Millstream, RetryPolicy, Topic
from tests.stage import looped, place, until


@dataclass
class Reading:
    sensor: str
    celsius: float
    count: int = 1
    at: datetime | None = None
    ok: bool = True
    blob: bytes = b""


@pytest.fixture(autouse=True)
def _on_a_server(embedded_url: str) -> Any:
    place.url = embedded_url
    yield
    place.url = "memory://"


def make(namespace: str) -> tuple[Millstream, Topic[Reading]]:
    app = Millstream(place.url, namespace=namespace, retry=RetryPolicy(1, delay=0.001, jitter=False))
    return app, app.topic("readings", Reading, codec="fields")


async def xadd(app: Millstream, topic: Topic[Any], *fields: str | bytes) -> None:
    broker: Any = await app.broker()
    await broker._calls.node(None).commands.call("XADD", topic.stream, "*", *fields)


@looped
async def test_the_fields_of_a_foreign_entry_become_the_fields_of_the_event() -> None:
    app, readings = make("fields-a")
    got: list[tuple[Reading, Delivery]] = []

    @readings.subscribe("g")
    async def take(reading: Reading, delivery: Delivery) -> None:
        got.append((reading, delivery))

    async with app:
        await xadd(app, readings, "sensor", "north", "celsius", "21.5", "count", "3", "ok", "false", "blob", b"\xff\x00")
        await xadd(app, readings, "sensor", "süd", "celsius", "-1", "at", "2026-01-31T09:00:00Z")
        await readings.publish(Reading("ours", 1.5))
        async with app.worker():
            await until(lambda: len(got) == 3)
    by_sensor = {reading.sensor: reading for reading, _ in got}
    assert by_sensor["north"] == Reading("north", 21.5, 3, None, False, b"\xff\x00")
    assert by_sensor["süd"] == Reading("süd", -1.0, at=datetime(2026, 1, 31, 9, tzinfo=UTC))
    assert by_sensor["ours"] == Reading("ours", 1.5)
    assert len({delivery.id for _, delivery in got}) == 3


@looped
async def test_a_foreign_entry_is_retried_dead_lettered_and_replayed_like_any_other_event() -> None:
    app, readings = make("fields-b")
    attempts: list[tuple[float, int]] = []
    fails = True

    @readings.subscribe("g")
    async def take(reading: Reading, delivery: Delivery) -> None:
        attempts.append((reading.celsius, delivery.attempt))
        if fails:
            raise ValueError("no")

    async with app:
        await xadd(app, readings, "sensor", "north", "celsius", "21.5")
        async with app.worker():
            await until(lambda: len(attempts) == 2)
            while not (letters := await readings.group("g").dead.list()):
                pass
            assert [letter.reason for letter in letters] == ["exhausted"]
            fails = False
            await readings.group("g").dead.replay(letters[0].id)
            await until(lambda: len(attempts) == 3)
    assert attempts == [(21.5, 1), (21.5, 2), (21.5, 1)]


@looped
async def test_in_a_batch_only_the_invalid_foreign_entry_becomes_a_dead_letter() -> None:
    app, readings = make("fields-c")
    got: list[str] = []

    @readings.subscribe("g", batch=Batch(10, wait=0.1), retry=0)
    async def take(several: list[Reading]) -> None:
        got.extend(reading.sensor for reading in several)

    async with app:
        await xadd(app, readings, "sensor", "first", "celsius", "1")
        await xadd(app, readings, "sensor", "bad", "celsius", "warm")
        await xadd(app, readings, b"\xff", "x")
        await xadd(app, readings, "sensor", "last", "celsius", "2")
        async with app.worker():
            await until(lambda: got == ["first", "last"])
            while len(letters := await readings.group("g").dead.list()) < 2:
                pass
    assert sorted(letter.reason for letter in letters) == ["invalid_arguments", "malformed"]


@looped
async def test_without_the_fields_codec_foreign_entries_are_malformed() -> None:
    app = Millstream(place.url, namespace="fields-d")
    plain = app.topic("plain", dict[str, str])

    @plain.subscribe("g")
    async def take(event: dict[str, str]) -> None:
        raise AssertionError("the event was handled")

    async with app:
        await xadd(app, plain, "a", "b")
        async with app.worker():
            while not (letters := await plain.group("g").dead.list()):
                pass
    assert [letter.reason for letter in letters] == ["malformed"]


@looped
async def test_dicts_and_structs_can_use_the_fields_codec_but_numbers_cannot() -> None:
    class Point(msgspec.Struct):
        x: int

    app = Millstream(place.url, namespace="fields-e")
    numbers = app.topic("numbers", int, codec="fields")
    got: list[Any] = []

    @app.topic("points", Point, codec="fields").subscribe("g")
    async def point(event: Point) -> None:
        got.append(event.x)

    @app.topic("dicts", dict[str, str], codec="fields").subscribe("g")
    async def dictionary(event: dict[str, str]) -> None:
        got.append(event)

    async with app:
        with pytest.raises(TypeError, match="needs an event with fields"):
            await numbers.publish(1)
        await xadd(app, app.topics["points"], "x", "5")
        await xadd(app, app.topics["dicts"], "x", "5")
        async with app.worker():
            await until(lambda: len(got) == 2)
    assert sorted(got, key=str) == [5, {"x": "5"}]
