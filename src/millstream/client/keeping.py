"""Maintenance of ordered and sharded queues and topics: stopped keys, positions in the log, and the number of shards."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial

from millstream.broker import Broker, Operating
from millstream.broker.values import BEGINNING, END, LogPosition
from millstream.broker.why import key_text
from millstream.client.client import Client
from millstream.client.template import new_request
from millstream.errors import ShardsInUse, UsageError
from millstream.model.address import Address
from millstream.model.ordering import Key, key_bytes


async def clear_key(client: Client, address: Address, what: str, key: Key, replay: bool) -> int:
    """Resume a stopped key of a queue or group. Return the number of replayed dead letters.

    Raises UsageError if the key is not stopped.
    """
    data = key_bytes(key, f"clear of {what}")
    for answer in await client.of_all(address, partial(_clear, key=data, replay=replay, request=new_request())):
        if answer is not None:
            return answer
    raise UsageError(f"key {key_text(data)!r} of {what} is not stopped: stopped_keys() returns the stopped keys")


def _clear(address: Address, broker: Operating, *, key: bytes, replay: bool, request: str) -> Awaitable[int | None]:
    return broker.clear_key(address, key, replay=replay, request=request)


async def seek(client: Client, group: Address, what: str, to: LogPosition) -> None:
    """Move a group's position in the log, or in the logs of all shards.

    Raises UsageError if the group does not exist or the position is not valid.
    """
    addresses = await client.addresses(group)
    if len(addresses) > 1 and isinstance(to, str) and to not in (BEGINNING, END):
        raise UsageError(
            f"{what} has {len(addresses)} shards, each with its own log and entry ids, so entry {to!r} is not a position in "
            f"all of them: use a time, {BEGINNING!r} or {END!r}"
        )
    request = new_request()
    if not any(await client.of_all(group, lambda at, broker: broker.seek(at, to, request=request))):
        raise UsageError(f"topic {group.log!r} has no group {group.group!r}")


async def reshard(client: Client, address: Address, shards: int) -> None:
    """Change the number of shards of a queue or topic. 0 means not sharded.

    Raises ShardsInUse if it has unfinished messages, or a stopped key, which would resume in another shard. In new shards the
    groups of a topic start at the beginning, and paused queues and groups stay paused.
    """
    before = await client.addresses(address)
    await client.ask(partial(_prepare, address=address, before=before, shards=shards))
    await client.ask(lambda broker: broker.reshard(address, shards))
    await client.ask(partial(_clean, address=address, before=before, shards=shards))
    client.opening.forget(address)


async def _prepare(broker: Broker, *, address: Address, before: Sequence[Address], shards: int) -> None:
    if list(before) == address.shards(shards):
        return  # the number does not change
    new = [each for each in address.shards(shards) if each not in before]
    if address.is_queue:
        states = [await broker.inspector.queue(each) for each in before]
        _refuse_stopped(address, sum(state.stopped for state in states))
        for each in new if any(state.paused for state in states) else ():
            await broker.pause(each)
        return
    topics = [await broker.inspector.topic(each.log) for each in before]
    _refuse_stopped(address, sum(group.stopped for topic in topics for group in topic.groups))
    groups = {group.name: BEGINNING for topic in topics for group in topic.groups}
    paused = {group.name for topic in topics for group in topic.groups if group.paused}
    for name in (each.log for each in new):
        await broker.open_topic(name, groups, followed=any(topic.followed for topic in topics))
        for group in paused:
            await broker.pause(Address.of_group(name, group))


def _refuse_stopped(address: Address, stopped: int) -> None:
    if stopped:
        raise ShardsInUse(f"{address!r} has stopped keys ({stopped:,}), which would resume in other shards: clear them first")


async def _clean(broker: Operating, *, address: Address, before: Sequence[Address], shards: int) -> None:
    """Remove the groups from the shards that no longer exist."""
    after = address.shards(shards)
    for each in before if not address.is_queue else ():
        if each not in after:
            name = each.log
            for group in (await broker.inspector.topic(name)).groups:
                await broker.remove_group(Address.of_group(name, group.name))
