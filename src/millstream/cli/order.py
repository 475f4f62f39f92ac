"""Ordering and shards in the command line: optional columns, stopped keys, ``clear`` and ``reshard``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from millstream.broker.why import key_text
from millstream.cli.output import confirm, print_list, say
from millstream.cli.table import Column
from millstream.cli.text import counted, moment
from millstream.errors import MillstreamError
from millstream.model.address import Address

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.broker import StoppedKey
    from millstream.events.group import Group
    from millstream.events.topic import Topic
    from millstream.jobs.queue import Queue

BLOCKED = Column("blocked", number=True)
STOPPED = Column("stopped", number=True)
SHARDS = Column("shards", number=True)
STOPPED_COLUMNS = (
    Column("queue"),
    Column("key", give="cut"),
    Column("since"),
    Column("waiting", number=True),
    Column("by"),
)

KeyText: TypeAlias = Annotated[
    str, typer.Argument(metavar="KEY", help="The ordering key, as printed by show.", show_default=False)
]
Replay: TypeAlias = Annotated[
    bool, typer.Option("--replay/--no-replay", help="Replay the key's dead letters, in order, before its newer messages.")
]
Number: TypeAlias = Annotated[
    int, typer.Argument(metavar="N", min=0, help="New number of shards. 0 means not sharded.", show_default=False)
]


def with_order(columns: Sequence[Column], rows: Sequence[dict[str, Any]], *more: Column, before: str) -> list[Column]:
    """Return the columns, and before the column ``before`` those of ``more`` that have a value in any row."""
    at = [column.field for column in columns].index(before)
    said = [column for column in more if any(row[column.field] for row in rows)]
    return [*columns[:at], *said, *columns[at:]]


def given_key(text: str) -> bytes:
    """Return the bytes of a key given on the command line, even if they are not valid UTF-8."""
    return text.encode(errors="surrogateescape")


def stopped_row(address: str, stopped: StoppedKey) -> dict[str, Any]:
    """Return the row of a stopped key."""
    return {
        "queue": address,
        "key": key_text(stopped.key),
        "by": stopped.by,
        "since": moment(stopped.since),
        "waiting": stopped.waiting,
    }


async def stopped_rows(app: Millstream, addresses: Sequence[Address]) -> list[dict[str, Any]]:
    """Return the rows of all stopped keys at the given addresses."""
    return [stopped_row(at, stopped) for at in addresses for stopped in await app.inspector.stopped_keys(at)]


def print_stopped(rows: Sequence[dict[str, Any]]) -> None:
    """Print stopped keys below other output. Without any, print nothing."""
    if rows:
        say("\nstopped keys")
        print_list(rows, STOPPED_COLUMNS, json=False, empty="")


def holder(app: Millstream, address: Address) -> Queue | Group:
    """Return the queue or group at an address."""
    return app.queue(address) if address.is_queue else app.group(address.log, address.group)


async def clear(app: Millstream, addresses: Sequence[Address], what: str, key: str, replay: bool) -> int:
    """Clear a key at every address where it is stopped. Return the number of replayed dead letters.

    Raises MillstreamError if the key is not stopped anywhere.
    """
    found = [(at, each) for at in addresses for each in await app.inspector.stopped_keys(at) if key_text(each.key) == key]
    if not found:
        known = [row["key"] for row in await stopped_rows(app, addresses)]
        hint = f"stopped keys: {', '.join(known[:20])}" if known else "no key is stopped"
        raise MillstreamError(f"key {key!r} of {what} is not stopped; {hint}")
    return sum([await holder(app, at).clear(each.key, replay=replay) for at, each in found])


async def reshard(app: Millstream, address: Address, sharded: Queue | Topic[Any], shards: int, yes: bool) -> None:
    """Change the number of shards of a queue or topic, after confirmation."""
    now = await app.inspector.shards(address)
    what = f"{type(sharded).__name__.lower()} {sharded.name}"
    if now == shards:
        raise MillstreamError(f"{what} already has {counted(shards, 'shard') if shards else 'no shards'}")
    wanted = counted(shards, "shard") if shards else "no shards"
    confirm(f"Change {what} from {now or 'no'} to {wanted}? Apps that declare another number will be refused.", yes)
    await sharded.reshard(shards)


def cleared(what: str, key: str, count: int, replay: bool) -> None:
    """Print that a key was cleared, and what became of its dead letters."""
    letters = f"{counted(count, 'dead letter')} replayed" if replay else "its dead letters were kept"
    say(f"key {key} of {what} is resumed; {letters}")
