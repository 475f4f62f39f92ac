"""Paging over several shards as if they were one list."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from millstream.model.address import Address


class Listed(Protocol):
    """An item of a page, with the cursor of the items after it."""

    @property
    def cursor(self) -> str: ...


L = TypeVar("L", bound=Listed)

Read = Callable[[Address, str, int], Awaitable[list[L]]]
"""Reads a page: address, cursor to start after, maximum number of items."""

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(list[str]).decode


async def merged(addresses: Sequence[Address], read: Read[L], rank: Callable[[L], Any], after: str, limit: int) -> list[L]:
    """Return one page over all shards, sorted by rank. The cursor of each item says how far every shard was read.

    The page ends where a shard would have to be read again, because the next item may be in that shard. Only an empty page is
    the last one.
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
