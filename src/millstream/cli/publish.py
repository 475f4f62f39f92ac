"""``millstream publish``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from millstream.cli.enqueue import parse_headers, sender_app
from millstream.cli.options import App, Factory, Header, Json, Namespace, Url
from millstream.cli.order import given_key
from millstream.cli.output import say
from millstream.cli.text import json_text
from millstream.errors import UsageError
from millstream.model.address import Address

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.events.topic import Topic


def publish(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)],
    event: Annotated[str, typer.Argument(metavar="JSON", help="The event, as JSON.", show_default=False)],
    app: App = None,
    factory: Factory = False,
    event_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id of the event. An id that was already published is not sent.")
    ] = None,
    delay: Annotated[
        float | None, typer.Option("--delay", metavar="SECONDS", help="Deliver the event after this delay.")
    ] = None,
    expires: Annotated[
        float | None,
        typer.Option("--expires", metavar="SECONDS", help="The event expires if it is not handled within this time."),
    ] = None,
    header: Header = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Ordering key. Only without an app; an app computes the key.")
    ] = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Publish an event to a topic.

    Prints the id of the event. If an app is given, it is imported, the event is checked against the topic's type, and the topic
    computes the ordering key. Without an app the event is sent unchecked.
    """
    from contextlib import nullcontext

    from millstream.cli.target import run

    try:
        value = msgspec.json.decode(event)
    except (UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise UsageError(f"the event is not JSON: {error}. A JSON string needs double quotes, for example '\"a\"'") from None
    given = {"id": event_id, "delay": delay, "expires": expires, "headers": parse_headers(header or [])}
    options = {name: each for name, each in given.items() if each}
    sender, checked = sender_app(app, factory, url, namespace)
    with sender.override(url) if checked and url is not None else nullcontext():
        if checked and key is not None:
            raise UsageError(f"--key {key} works only without an app: the app computes the ordering keys of its events")
        known = _known(sender, topic) if checked else None

        async def send(app: Millstream) -> None:
            await _send(known or await _unchecked(app, topic, key), value, options, json)

        run(sender, send)


def _known(app: Millstream, topic: str) -> Topic[Any]:
    if topic not in app.topics:
        raise UsageError(f"the app has no topic {topic!r}; its topics are: {', '.join(app.topics) or 'none'}")
    return app.topics[topic]


async def _unchecked(app: Millstream, topic: str, key: str | None) -> Topic[Any]:
    """Declare a topic that accepts any event, with the number of shards that the server has stored."""
    anything, shards = cast(type[Any], Any), await app.inspector.shards(Address.of_topic(topic))
    if not shards:
        if key is not None:
            raise UsageError(f"--key {key}: topic {topic!r} is not sharded, so only an app can set its keys: use --app")
        return app.topic(topic, anything)
    if key is None:
        raise UsageError(f"topic {topic!r} is ordered: give the app that computes the keys with --app, or a key with --key")
    return app.topic(topic, anything, order_by=lambda _: given_key(key), shards=shards)


async def _send(topic: Topic[Any], value: Any, options: Any, json: bool) -> None:
    try:
        event: Any = value if topic.type is Any else topic.wire.from_plain(value)
        event_id = await topic.publish(event, **options)
    except (TypeError, msgspec.ValidationError) as error:
        raise UsageError(f"topic {topic.name!r} does not accept this event: {error}") from error
    if json:
        say(json_text({"id": event_id, "topic": topic.name}))
    else:
        say(f"published {event_id} to topic {topic.name}" if sys.stdout.isatty() else event_id)
