"""``millstream topics`` and ``millstream groups``."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer

from millstream.address import group_address, shard_addresses, topic_address
from millstream.cli.noun import noun
from millstream.cli.options import Json, Namespace, Url, Yes
from millstream.cli.order import (
    BLOCKED,
    SHARDS,
    STOPPED,
    KeyText,
    Number,
    Replay,
    clear,
    cleared,
    print_stopped,
    reshard,
    stopped_rows,
    with_order,
)
from millstream.cli.output import confirm, print_details, print_list, say
from millstream.cli.table import Column
from millstream.errors import MillstreamError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from millstream.app import Millstream
    from millstream.broker import GroupState, TopicState
    from millstream.group import Group

TOPIC_COLUMNS = (
    Column("topic"),
    Column("length", number=True),
    Column("delayed", number=True),
    Column("published", number=True),
    Column("groups"),
)
GROUP_COLUMNS = (
    Column("topic"),
    Column("group"),
    Column("lag", number=True),
    Column("ready", number=True),
    Column("running", number=True),
    Column("scheduled", number=True),
    Column("dead", number=True),
    Column("paused"),
    Column("consumers", number=True),
)

SHARD_COLUMNS = (
    Column("shard"),
    Column("length", number=True),
    Column("delayed", number=True),
    Column("published", number=True),
)

TopicName: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]
GroupName: TypeAlias = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False)]
OfTopic: TypeAlias = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic. Default: all.")]
To: TypeAlias = Annotated[
    str,
    typer.Option("--to", metavar="PLACE", help="beginning, new, an entry's id, or a moment like 2026-01-31T09:00+00:00."),
]

topics = noun("topics", "Topics: what they keep, and for whom.")
groups = noun("groups", "Groups of topics: how far they are, and what waits, runs and died in them.")


@topics.command("ls")
def list_topics(json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """List every topic with its numbers."""
    from millstream.cli.target import at

    rows = [_topic_row(state) for state in at(url, namespace, lambda app: _topics(app, None))]
    columns = with_order(TOPIC_COLUMNS, rows, SHARDS, before="length")
    print_list(rows, columns, json=json, empty="there are no topics yet")


@topics.command("show")
def show_topic(topic: TopicName, json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """Show one topic, its groups, its shards, and the keys that are stopped."""
    from millstream.cli.target import at

    async def look(app: Millstream) -> tuple[TopicState, list[dict[str, Any]], list[dict[str, Any]]]:
        (state,) = await _topics(app, topic)
        names = shard_addresses(topic, state.shards) if state.shards else []
        shards = [{**_topic_row(await app.inspector.topic(name)), "shard": name} for name in names]
        stopped = [group_address(topic, group.name) for group in state.groups if group.stopped]
        return state, shards, await stopped_rows(app, stopped)

    state, shards, stopped = at(url, namespace, look)
    row, groups_of_it = _topic_row(state), [_group_row(topic, group) for group in state.groups]
    if json:
        per_shard = [{column.field: each[column.field] for column in SHARD_COLUMNS} for each in shards]
        print_details({**row, "groups": groups_of_it, "per_shard": per_shard, "stopped_keys": stopped}, {}, json=True)
        return
    del row["groups"]
    print_details({**row, "shards": row["shards"] or None}, {}, json=False)
    say("")
    columns = with_order(GROUP_COLUMNS[1:], groups_of_it, BLOCKED, STOPPED, before="dead")
    print_list(groups_of_it, columns, json=False, empty="it has no groups")
    if shards:
        say("")
        print_list(shards, SHARD_COLUMNS, json=False, empty="")
    print_stopped(stopped)


@topics.command("clear")
def clear_key(
    topic: TopicName,
    key: KeyText,
    group: Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only there. Default: all.")] = None,
    replay: Replay = True,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Let a stopped key of an ordered topic go on."""
    from millstream.cli.target import at

    what = f"topic {topic}"

    async def clear_it(app: Millstream) -> int:
        (state,) = await _topics(app, topic)
        names = [each.name for each in state.groups]
        if group is not None:
            _check_group(topic, group, names)
        return await clear(app, [group_address(topic, name) for name in names if group in (None, name)], what, key, replay)

    cleared(what, key, at(url, namespace, clear_it), replay)


@topics.command("reshard")
def reshard_topic(topic: TopicName, shards: Number, yes: Yes = False, url: Url = None, namespace: Namespace = None) -> None:
    """Change how many shards an ordered topic has.

    Only while nothing is on its way: no event ready, running, scheduled, delayed or blocked, nor dead in a shard that goes.
    Then every app must declare that number; those that do not are refused.
    """
    from millstream.cli.target import at

    async def change(app: Millstream) -> None:
        await _topics(app, topic)
        await reshard(app, topic_address(topic), app.topic(topic, cast(type[Any], Any)), shards, yes)

    at(url, namespace, change)
    say(f"topic {topic} has {shards or 'no'} shards")


@groups.command("ls")
def list_groups(topic: OfTopic = None, json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """List every group with its numbers; lag is what it was not given yet."""
    from millstream.cli.target import at

    states = at(url, namespace, lambda app: _topics(app, topic))
    rows = [_group_row(state.name, group) for state in states for group in state.groups]
    columns = with_order(GROUP_COLUMNS, rows, BLOCKED, STOPPED, before="dead")
    print_list(rows, columns, json=json, empty="there are no groups yet")


@groups.command("rewind")
def rewind_group(
    topic: TopicName, group: GroupName, to: To = "beginning", yes: Yes = False, url: Url = None, namespace: Namespace = None
) -> None:
    """Give a group again what its topic still keeps, from a place on."""
    place = _place(to)
    _do(
        topic,
        group,
        lambda chosen: chosen.rewind(place),
        url,
        namespace,
        ask=f"Give {group} again what came from {to} on?",
        yes=yes,
    )
    say(f"group {group} of topic {topic} goes on from {to}")


@groups.command("skip")
def skip_group(
    topic: TopicName, group: GroupName, to: To = "new", yes: Yes = False, url: Url = None, namespace: Namespace = None
) -> None:
    """Pass over what a group was not given yet, up to a place."""
    place = _place(to)
    _do(
        topic,
        group,
        lambda chosen: chosen.skip(place),
        url,
        namespace,
        ask=f"Never give {group} what comes before {to}?",
        yes=yes,
    )
    say(f"group {group} of topic {topic} goes on from {to}")


@groups.command("pause")
def pause_group(topic: TopicName, group: GroupName, url: Url = None, namespace: Namespace = None) -> None:
    """Handle no event of a group until it is resumed. What runs goes on; publishing too."""
    _do(topic, group, lambda chosen: chosen.pause(), url, namespace)
    say(f"group {group} of topic {topic} is paused")


@groups.command("resume")
def resume_group(topic: TopicName, group: GroupName, url: Url = None, namespace: Namespace = None) -> None:
    """Undo pause."""
    _do(topic, group, lambda chosen: chosen.resume(), url, namespace)
    say(f"group {group} of topic {topic} is resumed")


@groups.command("rm")
def remove_group(topic: TopicName, group: GroupName, yes: Yes = False, url: Url = None, namespace: Namespace = None) -> None:
    """Remove a group with all that waits or is dead in it.

    A worker that serves it makes it again, at the beginning of what the topic still keeps. PREFIX* removes a group that was
    declared for all topics whose names begin so.
    """
    if topic.endswith("*"):
        _remove_prefix(topic.removesuffix("*"), group, yes, url, namespace)
        return
    _do(
        topic,
        group,
        lambda chosen: chosen.remove(),
        url,
        namespace,
        ask=f"Remove group {group} of topic {topic} with all in it?",
        yes=yes,
    )
    say(f"group {group} of topic {topic} is removed")


def _remove_prefix(prefix: str, group: str, yes: bool, url: str | None, namespace: str | None) -> None:
    from millstream.cli.target import at

    async def confirm_and_remove(app: Millstream) -> None:
        confirm(f"Remove group {group} of all topics {prefix}* with all in it?", yes)
        await app.remove_prefix(prefix, group)

    at(url, namespace, confirm_and_remove)
    say(f"group {group} of all topics {prefix}* is removed")


def _do(
    topic: str,
    group: str,
    act: Callable[[Group], Awaitable[None]],
    url: str | None,
    namespace: str | None,
    *,
    ask: str = "",
    yes: bool = True,
) -> None:
    from millstream.cli.target import at

    async def find_and_act(app: Millstream) -> None:
        (state,) = await _topics(app, topic)
        _check_group(topic, group, [each.name for each in state.groups])
        if ask:
            confirm(ask, yes)
        await act(app.group(topic, group))

    at(url, namespace, find_and_act)


def _check_group(topic: str, group: str, names: Sequence[str]) -> None:
    if group not in names:
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise MillstreamError(f"topic {topic!r} has no group {group!r}; {known}")


async def _topics(app: Millstream, topic: str | None) -> list[TopicState]:
    names = await app.inspector.topics()
    if topic is not None:
        if topic not in names:
            known = f"there are {', '.join(names)}" if names else "there is none yet"
            raise MillstreamError(f"there is no topic {topic!r}; {known}")
        names = [topic]
    return [await app.inspector.topic(name) for name in names]


def _topic_row(state: TopicState) -> dict[str, Any]:
    return {
        "topic": state.name,
        "length": state.length,
        "delayed": state.delayed,
        "published": state.totals["published"],
        "broadcast": state.followed,
        "shards": state.shards,
        "groups": [group.name for group in state.groups],
    }


def _group_row(topic: str, state: GroupState) -> dict[str, Any]:
    numbers = {column.field: getattr(state, column.field) for column in GROUP_COLUMNS[2:]}
    order = {"blocked": state.blocked, "stopped": state.stopped}
    return {"topic": topic, "group": state.name, **numbers, **order, "place": state.place}


def _place(to: str) -> datetime | str:
    if to in ("beginning", "new") or to.replace("-", "", 1).isdigit():
        return to
    try:
        moment = datetime.fromisoformat(to)
    except ValueError:
        raise UsageError(
            f"--to {to}: neither beginning, new, an entry's id, nor a moment like 2026-01-31T09:00+00:00"
        ) from None
    if moment.utcoffset() is None:
        raise UsageError(f"--to {to} has no time zone: write {to}+00:00 if it is UTC")
    return moment
