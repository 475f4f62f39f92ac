"""``millstream groups``."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from millstream.cli.noun import noun
from millstream.cli.options import Json, Namespace, Url, Yes
from millstream.cli.order import BLOCKED, STOPPED, with_order
from millstream.cli.output import confirm, print_list, say
from millstream.cli.table import Column
from millstream.errors import MillstreamError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from millstream.app import Millstream
    from millstream.broker import GroupState, TopicState
    from millstream.events.group import Group

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


TopicName: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]
GroupName: TypeAlias = Annotated[
    str, typer.Argument(metavar="TOPIC/GROUP", help="The group, as in orders/billing.", show_default=False)
]
OfTopic: TypeAlias = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic. Default: all.")]
To: TypeAlias = Annotated[
    str,
    typer.Option("--to", metavar="PLACE", help="beginning, new, an entry's id, or a moment like 2026-01-31T09:00+00:00."),
]


groups = noun("groups", "Groups of topics: how far they are, and what waits, runs and died in them.")


@groups.command("ls")
def list_groups(topic: OfTopic = None, json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """List every group with its numbers; lag is what it was not given yet."""
    from millstream.cli.target import at, where

    states = at(url, namespace, lambda app: topics_of(app, topic))
    rows = [group_row(state.name, group) for state in states for group in state.groups]
    columns = with_order(GROUP_COLUMNS, rows, BLOCKED, STOPPED, before="dead")
    print_list(rows, columns, json=json, empty="there are no groups yet", where=where(url, namespace))


@groups.command("rewind")
def rewind_group(
    group: GroupName, to: To = "beginning", yes: Yes = False, url: Url = None, namespace: Namespace = None
) -> None:
    """Give a group again what its topic still keeps, from a place on."""
    position = _position(to)
    _do(
        group,
        lambda chosen: chosen.rewind(position),
        url,
        namespace,
        ask=f"Give {group} again what came from {to} on?",
        yes=yes,
    )
    say(f"group {group} goes on from {to}")


@groups.command("skip")
def skip_group(group: GroupName, to: To = "new", yes: Yes = False, url: Url = None, namespace: Namespace = None) -> None:
    """Pass over what a group was not given yet, up to a place."""
    position = _position(to)
    _do(
        group,
        lambda chosen: chosen.skip(position),
        url,
        namespace,
        ask=f"Never give {group} what comes before {to}?",
        yes=yes,
    )
    say(f"group {group} goes on from {to}")


@groups.command("pause")
def pause_group(group: GroupName, url: Url = None, namespace: Namespace = None) -> None:
    """Handle no event of a group until it is resumed. What runs goes on; publishing too."""
    _do(group, lambda chosen: chosen.pause(), url, namespace)
    say(f"group {group} is paused")


@groups.command("resume")
def resume_group(group: GroupName, url: Url = None, namespace: Namespace = None) -> None:
    """Undo pause."""
    _do(group, lambda chosen: chosen.resume(), url, namespace)
    say(f"group {group} is resumed")


@groups.command("rm")
def remove_group(group: GroupName, yes: Yes = False, url: Url = None, namespace: Namespace = None) -> None:
    """Remove a group with all that waits or is dead in it.

    A worker that serves it creates it again, at the beginning of what the topic still keeps. PREFIX*/GROUP removes a group that
    was declared for all topics whose names begin with PREFIX.
    """
    topic, name = _parts(group)
    if topic.endswith("*"):
        _remove_prefix(topic.removesuffix("*"), name, yes, url, namespace)
        return
    _do(
        group,
        lambda chosen: chosen.remove(),
        url,
        namespace,
        ask=f"Remove group {group} with all in it?",
        yes=yes,
    )
    say(f"group {group} is removed")


def _remove_prefix(prefix: str, group: str, yes: bool, url: str | None, namespace: str | None) -> None:
    from millstream.cli.target import at

    async def confirm_and_remove(app: Millstream) -> None:
        confirm(f"Remove group {group} of all topics {prefix}* with all in it?", yes)
        await app.remove_prefix(prefix, group)

    at(url, namespace, confirm_and_remove)
    say(f"group {group} of all topics {prefix}* is removed")


def _parts(group: str) -> tuple[str, str]:
    """The names of topic and group. UsageError if it does not name both."""
    topic, _, name = group.partition("/")
    if not topic or not name:
        raise UsageError(f"{group!r} does not name a group: write TOPIC/GROUP, as in orders/billing")
    return topic, name


def _do(
    group: str,
    act: Callable[[Group], Awaitable[None]],
    url: str | None,
    namespace: str | None,
    *,
    ask: str = "",
    yes: bool = True,
) -> None:
    from millstream.cli.target import at

    topic, name = _parts(group)

    async def find_and_act(app: Millstream) -> None:
        (state,) = await topics_of(app, topic)
        check_group(topic, name, [each.name for each in state.groups])
        if ask:
            confirm(ask, yes)
        await act(app.group(topic, name))

    at(url, namespace, find_and_act)


def check_group(topic: str, group: str, names: Sequence[str]) -> None:
    """MillstreamError if a topic has no such group."""
    if group not in names:
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise MillstreamError(f"topic {topic!r} has no group {group!r}; {known}")


async def topics_of(app: Millstream, topic: str | None) -> list[TopicState]:
    """The one topic asked for, or all; MillstreamError if there is no such topic."""
    names = await app.inspector.topics()
    if topic is not None:
        if topic not in names:
            known = f"there are {', '.join(names)}" if names else "there is none yet"
            raise MillstreamError(f"there is no topic {topic!r}; {known} (at {app.where})")
        names = [topic]
    return [await app.inspector.topic(name) for name in names]


def group_row(topic: str, state: GroupState) -> dict[str, Any]:
    """A group in a list."""
    numbers = {column.field: getattr(state, column.field) for column in GROUP_COLUMNS[2:]}
    order = {"blocked": state.blocked, "stopped": state.stopped}
    return {"topic": topic, "group": state.name, **numbers, **order, "position": state.position}


def _position(to: str) -> datetime | str:
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
