"""What several nouns say of order: columns that are there where they say something, stopped keys, clearing, changing shards."""

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

KeyText: TypeAlias = Annotated[str, typer.Argument(metavar="KEY", help="The key, as show tells it.", show_default=False)]
Replay: TypeAlias = Annotated[
    bool, typer.Option("--replay/--no-replay", help="Put its dead letters back, in order, before newer ones.")
]
Number: TypeAlias = Annotated[int, typer.Argument(metavar="N", min=0, help="How many; 0: none.", show_default=False)]


def with_order(columns: Sequence[Column], rows: Sequence[dict[str, Any]], *more: Column, before: str) -> list[Column]:
    """The columns, and before one of them those that say something of any row."""
    at = [column.field for column in columns].index(before)
    said = [column for column in more if any(row[column.field] for row in rows)]
    return [*columns[:at], *said, *columns[at:]]


def given_key(text: str) -> bytes:
    """A key as it was given on the command line, whatever its bytes."""
    return text.encode(errors="surrogateescape")


def stopped_row(address: str, stopped: StoppedKey) -> dict[str, Any]:
    """A stopped key."""
    return {
        "queue": address,
        "key": key_text(stopped.key),
        "by": stopped.by,
        "since": moment(stopped.since),
        "waiting": stopped.waiting,
    }


async def stopped_rows(app: Millstream, addresses: Sequence[Address]) -> list[dict[str, Any]]:
    """The stopped keys at some addresses."""
    return [stopped_row(at, stopped) for at in addresses for stopped in await app.inspector.stopped_keys(at)]


def print_stopped(rows: Sequence[dict[str, Any]]) -> None:
    """Below something else, if there are any."""
    if rows:
        say("\nstopped keys")
        print_list(rows, STOPPED_COLUMNS, json=False, empty="")


def holder(app: Millstream, address: Address) -> Queue | Group:
    """What is at an address, to be looked after."""
    return app.queue(address) if address.is_queue else app.group(address.log, address.group)


async def clear(app: Millstream, addresses: Sequence[Address], what: str, key: str, replay: bool) -> int:
    """Clear a key wherever it is stopped; how many letters were replayed. MillstreamError if it is stopped nowhere."""
    found = [(at, each) for at in addresses for each in await app.inspector.stopped_keys(at) if key_text(each.key) == key]
    if not found:
        known = [row["key"] for row in await stopped_rows(app, addresses)]
        hint = f"stopped are {', '.join(known[:20])}" if known else "none is"
        raise MillstreamError(f"key {key!r} of {what} is not stopped; {hint}")
    return sum([await holder(app, at).clear(each.key, replay=replay) for at, each in found])


async def reshard(app: Millstream, address: Address, sharded: Queue | Topic[Any], shards: int, yes: bool) -> None:
    """Change how many shards a queue has, or a topic by its address."""
    now = await app.inspector.shards(address)
    what = f"{type(sharded).__name__.lower()} {sharded.name}"
    if now == shards:
        raise MillstreamError(f"{what} has {counted(shards, 'shard') if shards else 'no shards'} already")
    wanted = counted(shards, "shard") if shards else "no shards"
    confirm(f"Change {what} from {now or 'no'} to {wanted}? Apps that declare another number are refused.", yes)
    await sharded.reshard(shards)


def cleared(what: str, key: str, count: int, replay: bool) -> None:
    """Say what was done."""
    letters = f"{counted(count, 'dead letter')} put back" if replay else "its dead letters stay"
    say(f"key {key} of {what} goes on; {letters}")
