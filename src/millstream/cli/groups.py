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


TopicName: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]
GroupName: TypeAlias = Annotated[
    str, typer.Argument(metavar="TOPIC/GROUP", help="The group, for example orders/billing.", show_default=False)
]
OfTopic: TypeAlias = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic. Default: all.")]
To: TypeAlias = Annotated[
    str,
    typer.Option("--to", metavar="POSITION", help="Position: beginning, new, an entry id, or a time (2026-01-31T09:00+00:00)."),
]


groups = noun("groups", "List, pause, rewind and remove consumer groups of topics.")


@groups.command("ls")
def list_groups(topic: OfTopic = None, json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """List groups with their counts.

    Lag is the number of events that were not yet delivered to the group.
    """
    from millstream.cli.target import at, where

    states = at(url, namespace, lambda app: topics_of(app, topic))
    rows = [group_row(state.name, group) for state in states for group in state.groups]
    columns = with_order(GROUP_COLUMNS, rows, BLOCKED, STOPPED, before="dead")
    print_list(rows, columns, json=json, empty="there are no groups yet", where=where(url, namespace))


@groups.command("rewind")
def rewind_group(
    group: GroupName, to: To = "beginning", yes: Yes = False, url: Url = None, namespace: Namespace = None
) -> None:
    """Redeliver stored events to a group, from a position on."""
    position = _position(to)
    _do(
        group,
        lambda chosen: chosen.rewind(position),
        url,
        namespace,
        ask=f"Redeliver all stored events from {to} on to {group}?",
        yes=yes,
    )
    say(f"group {group} continues from {to}")


@groups.command("skip")
def skip_group(group: GroupName, to: To = "new", yes: Yes = False, url: Url = None, namespace: Namespace = None) -> None:
    """Skip undelivered events of a group, up to a position."""
    position = _position(to)
    _do(
        group,
        lambda chosen: chosen.skip(position),
        url,
        namespace,
        ask=f"Skip all events before {to} that {group} has not received yet?",
        yes=yes,
    )
    say(f"group {group} continues from {to}")


@groups.command("pause")
def pause_group(group: GroupName, url: Url = None, namespace: Namespace = None) -> None:
    """Pause a group: no further event is handled. Running handlers finish, and publishing continues."""
    _do(group, lambda chosen: chosen.pause(), url, namespace)
    say(f"group {group} is paused")


@groups.command("resume")
def resume_group(group: GroupName, url: Url = None, namespace: Namespace = None) -> None:
    """Resume a paused group."""
    _do(group, lambda chosen: chosen.resume(), url, namespace)
    say(f"group {group} is resumed")


@groups.command("rm")
def remove_group(group: GroupName, yes: Yes = False, url: Url = None, namespace: Namespace = None) -> None:
    """Remove a group with its waiting events and dead letters.

    A worker that still serves the group creates it again, starting at the oldest event that the topic stores. PREFIX*/GROUP
    removes a group that was declared for all topics whose names begin with PREFIX.
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
        ask=f"Remove group {group} with its waiting events and dead letters?",
        yes=yes,
    )
    say(f"group {group} is removed")


def _remove_prefix(prefix: str, group: str, yes: bool, url: str | None, namespace: str | None) -> None:
    from millstream.cli.target import at

    async def confirm_and_remove(app: Millstream) -> None:
        confirm(f"Remove group {group} from all topics {prefix}* with its waiting events and dead letters?", yes)
        await app.remove_prefix(prefix, group)

    at(url, namespace, confirm_and_remove)
    say(f"group {group} is removed from all topics {prefix}*")


def _parts(group: str) -> tuple[str, str]:
    """Split ``topic/group`` into its two names. Raises UsageError if one is missing."""
    topic, _, name = group.partition("/")
    if not topic or not name:
        raise UsageError(f"{group!r} does not name a group: write TOPIC/GROUP, for example orders/billing")
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
    """Raise MillstreamError if a topic has no such group."""
    if group not in names:
        known = f"its groups are: {', '.join(names)}" if names else "it has no groups"
        raise MillstreamError(f"topic {topic!r} has no group {group!r}; {known}")


async def topics_of(app: Millstream, topic: str | None) -> list[TopicState]:
    """Return the state of one topic, or of all if ``topic`` is ``None``. Raises MillstreamError if the topic does not exist."""
    names = await app.inspector.topics()
    if topic is not None:
        if topic not in names:
            known = f"existing topics: {', '.join(names)}" if names else "no topic exists yet"
            raise MillstreamError(f"there is no topic {topic!r}; {known} (at {app.where})")
        names = [topic]
    return [await app.inspector.topic(name) for name in names]


def group_row(topic: str, state: GroupState) -> dict[str, Any]:
    """Return the row of a group in a list."""
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
            f"--to {to} is not a position: use beginning, new, an entry id, or a time such as 2026-01-31T09:00+00:00"
        ) from None
    if moment.utcoffset() is None:
        raise UsageError(f"--to {to} has no time zone: for UTC, write {to}+00:00")
    return moment
