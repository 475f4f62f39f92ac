"""``millstream topics``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from millstream.cli.groups import GROUP_COLUMNS, TopicName, check_group, group_row, topics_of
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
from millstream.cli.output import print_details, print_list, say
from millstream.cli.table import Column
from millstream.cli.text import counted
from millstream.model.address import Address

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.broker import TopicState

TOPIC_COLUMNS = (
    Column("topic"),
    Column("length", number=True),
    Column("delayed", number=True),
    Column("published", number=True),
    Column("groups"),
)
SHARD_COLUMNS = (
    Column("shard"),
    Column("length", number=True),
    Column("delayed", number=True),
    Column("published", number=True),
)

topics = noun("topics", "List, inspect and reshard topics.")


@topics.command("ls")
def list_topics(json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """List topics with their counts."""
    from millstream.cli.target import at, where

    rows = [_topic_row(state) for state in at(url, namespace, lambda app: topics_of(app, None))]
    columns = with_order(TOPIC_COLUMNS, rows, SHARDS, before="length")
    print_list(rows, columns, json=json, empty="there are no topics yet", where=where(url, namespace))


@topics.command("show")
def show_topic(topic: TopicName, json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """Show one topic with its groups, shards and stopped keys."""
    from millstream.cli.target import at

    async def look(app: Millstream) -> tuple[TopicState, list[dict[str, Any]], list[dict[str, Any]]]:
        (state,) = await topics_of(app, topic)
        names = [shard.log for shard in Address.of_topic(topic).shards(state.shards)] if state.shards else []
        shards = [{**_topic_row(await app.inspector.topic(name)), "shard": name} for name in names]
        stopped = [Address.of_group(topic, group.name) for group in state.groups if group.stopped]
        return state, shards, await stopped_rows(app, stopped)

    state, shards, stopped = at(url, namespace, look)
    row, groups_of_it = _topic_row(state), [group_row(topic, group) for group in state.groups]
    if json:
        per_shard = [{column.field: each[column.field] for column in SHARD_COLUMNS} for each in shards]
        print_details({**row, "groups": groups_of_it, "per_shard": per_shard, "stopped_keys": stopped}, {}, json=True)
        return
    del row["groups"]
    print_details({**row, "shards": row["shards"] or None}, {}, json=False)
    say("")
    columns = with_order(GROUP_COLUMNS[1:], groups_of_it, BLOCKED, STOPPED, before="dead")
    print_list(groups_of_it, columns, json=False, empty="this topic has no groups")
    if shards:
        say("")
        print_list(shards, SHARD_COLUMNS, json=False, empty="")
    print_stopped(stopped)


@topics.command("clear")
def clear_key(
    topic: TopicName,
    key: KeyText,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only in this group. Default: all.")
    ] = None,
    replay: Replay = True,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Resume a stopped ordering key of a topic."""
    from millstream.cli.target import at

    what = f"topic {topic}"

    async def clear_it(app: Millstream) -> int:
        (state,) = await topics_of(app, topic)
        names = [each.name for each in state.groups]
        if group is not None:
            check_group(topic, group, names)
        return await clear(app, [Address.of_group(topic, name) for name in names if group in (None, name)], what, key, replay)

    cleared(what, key, at(url, namespace, clear_it), replay)


@topics.command("reshard")
def reshard_topic(topic: TopicName, shards: Number, yes: Yes = False, url: Url = None, namespace: Namespace = None) -> None:
    """Change the number of shards of an ordered topic.

    The topic must have no ready, running, scheduled, delayed or blocked event, no stopped key, and no dead letter in a shard
    that is removed. Afterwards every app must declare the new number; apps that declare another are refused.
    """
    from millstream.cli.target import at

    async def change(app: Millstream) -> None:
        await topics_of(app, topic)
        await reshard(app, Address.of_topic(topic), app.topic(topic, cast(type[Any], Any)), shards, yes)

    at(url, namespace, change)
    say(f"topic {topic} has {counted(shards, 'shard') if shards else 'no shards'}")


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
