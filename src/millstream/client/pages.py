"""Pages of what several shards hold, as if it were one list."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from millstream.model.address import Address


class Listed(Protocol):
    """What a page holds: each knows where the list goes on after it."""

    @property
    def cursor(self) -> str: ...


L = TypeVar("L", bound=Listed)

Read = Callable[[Address, str, int], Awaitable[list[L]]]
"""Reads a page at an address, after a cursor, of at most so many."""

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(list[str]).decode


async def merged(addresses: Sequence[Address], read: Read[L], rank: Callable[[L], Any], after: str, limit: int) -> list[L]:
    """A page of all shards together, by rank; each with a cursor that says how far every shard was read.

    It ends where one of the shards would have to be read again: what comes next may be that one's. Not the last page if it has
    anything in it.
    """
    if len(addresses) == 1:
        return await read(addresses[0], after, limit)
    cursors = _read(after) if after else [""] * len(addresses)
    each = limit // len(addresses) + 1
    pages = await asyncio.gather(*(read(at, cursor, each) for at, cursor in zip(addresses, cursors, strict=True)))
    read_to, found = [0] * len(pages), list[L]()
    while len(found) < limit:
        heads = [(rank(page[at]), shard) for shard, (page, at) in enumerate(zip(pages, read_to, strict=True)) if at < len(page)]
        if not heads:
            break
        shard = min(heads)[1]
        item = pages[shard][read_to[shard]]
        cursors[shard] = item.cursor
        found.append(msgspec.structs.replace(item, cursor=_write(cursors).decode()))  # type: ignore[type-var]
        read_to[shard] += 1
        if read_to[shard] == len(pages[shard]):
            break
    return found
