"""Topics with a union of event types."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType

from millstream import RetryPolicy
from millstream.broker import Post
from millstream.codec import EventCodec
from millstream.errors import UsageError
from millstream.model.message import Message, encode_message
from tests.stage import looped, new_app, until

pytestmark = pytest.mark.usefixtures("every_backend")


@dataclass
class Placed:
    order: int


@dataclass
class Sent:
    order: int
    parcel: str


class Paid(pydantic.BaseModel):
    order: int


class Special(Placed):
    pass


class Opened(msgspec.Struct, tag=True):
    order: int


class Closed(msgspec.Struct, tag=True):
    order: int


Events = TypeAliasType("Events", Placed | Sent)
Tagged = TypeAliasType("Tagged", Opened | Closed)


class Own:
    """A user-defined codec."""

    def encode(self, event: Any) -> bytes:
        return b""

    def decode(self, data: bytes) -> Any:
        return None


@pytest.mark.parametrize(
    ("type_", "events"),
    [
        (Placed | Sent | Paid, [Placed(1), Sent(2, "p"), Paid(order=3)]),
        (Opened | Closed, [Opened(1), Closed(2)]),
        (Placed | None, [Placed(1), None]),
        (Annotated[Placed | Sent, "events"], [Placed(1), Sent(2, "p")]),
        (Events, [Placed(1), Sent(2, "p")]),
        (Events | Paid, [Placed(1), Paid(order=3)]),
        (Tagged, [Opened(1), Closed(2)]),
        (int | str, [1, "two"]),
    ],
)
@looped
async def test_each_event_arrives_in_the_type_in_which_it_was_published(type_: Any, events: list[Any]) -> None:
    app = new_app()
    topic: Any = app.topic("orders", type_)
    got: list[Any] = []

    async def take(event: Any) -> None:
        got.append(event)

    topic.subscribe("all")(take)
    async with app, app.worker():
        await topic.publish_many(events)
        await until(lambda: len(got) == len(events))
    assert got == events
    assert [type(event) for event in got] == [type(event) for event in events]


@looped
async def test_an_event_outside_the_union_is_refused_and_a_subclass_arrives_as_its_base() -> None:
    app = new_app()
    topic: Any = app.topic("orders", Placed | Sent)
    got: list[Any] = []

    async def take(event: Placed | Sent) -> None:
        got.append(event)

    topic.subscribe("all")(take)
    async with app, app.worker():
        with pytest.raises(TypeError, match="it is a Paid, not one of Placed, Sent"):
            await topic.publish(Paid(order=1))
        await topic.publish(Special(1))
        await until(lambda: got)
    assert got == [Placed(1)]


@looped
async def test_an_event_of_a_type_unknown_to_the_handler_becomes_a_dead_letter_that_names_it() -> None:
    app = new_app(retry=RetryPolicy(0))
    topic: Any = app.topic("orders", Placed | Sent)

    async def take(event: Placed | Sent) -> None: ...

    topic.subscribe("all")(take)
    payload = EventCodec("orders", Placed | Sent | Paid).encode((Paid(order=1),), {})
    body = encode_message(Message("e", "orders", msgspec.Raw(payload), 0))
    async with app, app.worker():
        await (await app.broker()).emit("orders", [Post("e", body, "orders")])
        while not (found := await app.dead.list()):
            await asyncio.sleep(0.01)
    assert found[0].reason == "invalid_arguments"
    assert "it is a Paid, not one of Placed, Sent" in found[0].error


@pytest.mark.parametrize(
    ("codec", "type_", "says"),
    [
        ("raw", bytes | str, "codec='msgpack' or 'json', not 'raw'"),
        ("fields", Placed | Sent, "codec='msgpack' or 'json', not 'fields'"),
        ("json", Placed | Sent, "codec='json' cannot tell .*Placed, .*Sent apart: use codec='msgpack'"),
        ("msgpack", Placed | Sent | list[Placed], "is not a class.*: put it into a dataclass or a Struct"),
        (Own(), Placed | Sent, "codec='msgpack' or 'json', not "),
    ],
)
def test_unions_that_cannot_be_encoded_are_refused_at_declaration(codec: Any, type_: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        new_app().topic("orders", type_, codec=codec)


def test_tagged_structs_can_be_encoded_as_json_too() -> None:
    codec = EventCodec("orders", Opened | Closed, "json")
    assert codec.decode(codec.encode((Closed(2),), {})) == Closed(2)
