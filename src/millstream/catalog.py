"""The catalog: everything that an app declares, and the addresses that a worker serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from millstream.broker import OrderRules
from millstream.errors import UsageError
from millstream.events.broadcast import Broadcast
from millstream.events.subscription import PrefixSubscription, Subscription
from millstream.events.topic import Topic
from millstream.jobs.task import Task
from millstream.model.address import Address
from millstream.model.handler import GroupHandler
from millstream.model.serving import Serving
from millstream.model.settings import QueueSettings, TaskSettings


class Catalog:
    """The tasks, queues, topics and prefix subscriptions of an app, by name."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task[..., Any]] = {}
        """By name and by alias."""
        self.queues: dict[str, QueueSettings] = {}
        """Every queue that is declared, by ``app.queue`` or by a task."""
        self.topics: dict[str, Topic[Any]] = {}
        self.prefixes: dict[Address, PrefixSubscription] = {}
        """Subscriptions to all topics whose names begin with a prefix."""

    # -- declaring ---------------------------------------------------------------------------------------------------------

    def check_task(self, settings: TaskSettings) -> None:
        """Raise ``UsageError`` if a task with these settings conflicts with a declared task."""
        names = (settings.name, *settings.aliases)
        for name in names:
            if name in self.tasks or names.count(name) > 1:
                by = f" in module {self.tasks[name].fn.__module__}" if name in self.tasks else ""
                raise UsageError(
                    f"task {name!r} is already declared{by}: names are unique in an app; choose another with name="
                )
        for other in self.tasks.values():
            rules, same_queue = other.settings.order, other.settings.queue == settings.queue
            if same_queue and rules is not None and settings.order is not None and rules != settings.order:
                raise UsageError(
                    f"task {settings.name!r} has {_rules(settings.order)}, but {other!r} has {_rules(rules)}: these options "
                    "apply to the whole queue; use the same for both tasks, or another queue for one of them"
                )

    def add_task(self, task: Task[..., Any]) -> None:
        """Add a task and its queue. The task must have passed ``check_task``."""
        settings = task.settings
        self.queues.setdefault(settings.queue, QueueSettings(name=settings.queue))
        self.tasks.update(dict.fromkeys((settings.name, *settings.aliases), task))

    def add_prefix(self, subscription: PrefixSubscription) -> None:
        """Add a prefix subscription. Raise ``UsageError`` if another subscription of its group may match the same topics."""
        prefix, group = subscription.prefix, subscription.group
        for other in self.prefixes.values():
            if other.group == group and (other.prefix.startswith(prefix) or prefix.startswith(other.prefix)):
                raise UsageError(
                    f"group {group!r} already has a handler for the prefix {other.prefix!r}, which overlaps with {prefix!r}: "
                    "use another group"
                )
        self.prefixes[subscription.address] = subscription

    def resolve(self) -> None:
        """Check what needs all declarations: every annotation, and that each ``on_dead`` handler belongs to a subscription."""
        for task in self.tasks.values():
            task.arguments.resolve()
            task.returns.resolve()
        for topic in self.topics.values():
            for group in topic.dead_handlers.keys() - topic.subscriptions.keys():
                raise UsageError(
                    f"on_dead({group!r}) of topic {topic.name!r}: the topic has no subscription of that group; add "
                    f"@topic.subscribe({group!r}), or correct the name"
                )

    # -- handlers ----------------------------------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> Mapping[Address, GroupHandler]:
        """The handlers of events and of dead letters, by address. A group's handler comes before its dead-letter handler."""
        found: dict[Address, GroupHandler] = {}
        for topic in self.topics.values():
            for each in topic.subscriptions.values():
                found[each.address] = each
                if each.group in topic.dead_handlers:
                    found[each.address.dead] = topic.dead_handlers[each.group]
        return found

    def subscriptions_at(self, addresses: Iterable[Address]) -> Mapping[Address, GroupHandler]:
        """Return ``subscriptions``, plus the prefix subscriptions of the groups at these addresses."""
        found = dict(self.subscriptions)
        for address in addresses:
            prefix = next((prefix for prefix in self.prefixes.values() if prefix.serves(address)), None)
            if prefix is not None and address not in found:
                found[address] = prefix.to(address.log)
        return found

    @property
    def broadcasts(self) -> Sequence[Broadcast]:
        """The handlers that receive every event in every worker process."""
        return [each for topic in self.topics.values() for each in topic.broadcasts]

    # -- serving -----------------------------------------------------------------------------------------------------------

    def to_serve(self, wanted: Iterable[str]) -> list[Address]:
        """Return the addresses that a worker serves.

        Without ``wanted`` these are all queues, all subscribed groups and all topics with broadcasts (``topic/``). The dead
        letters of a group are included if the app handles them.

        Raises:
            UsageError: There is nothing to serve, or the app does not declare a wanted address.
        """
        broadcast = dict.fromkeys(each.address for each in self.broadcasts)
        served = [*(map(Address, self.queues) if self.tasks else ()), *self.subscriptions, *self.prefixes, *broadcast]
        names = [Address(name) for name in dict.fromkeys(wanted)]
        for topic in self.topics.values():  # a broadcast of an ordered topic reads every shard
            if topic.broadcasts and topic.settings.shards and (base := Address.of_topic(topic.name)) in names:
                names[names.index(base) : names.index(base) + 1] = base.shards(topic.settings.shards)
        names += [address for name in names if (address := name.dead) in served and address not in names]
        if not served:
            raise UsageError(
                "there is nothing to serve: this app has no tasks, subscriptions or broadcasts. Does include= name the "
                "modules that declare them?"
            )
        for name in names:
            if not {name, name.base}.intersection(served) and not any(prefix.serves(name) for prefix in self.prefixes.values()):
                known = ", ".join(map(repr, served))
                raise UsageError(f"the app does not declare {name!r}; it declares {known}")
        return names or served

    def serving(self, addresses: Iterable[Address]) -> list[Serving]:
        """Return the shards, consumer limit and order of each address. The addresses come from ``to_serve``."""
        subscriptions = self.subscriptions_at(addresses := list(addresses))
        return [self._serving(address, subscriptions.get(address)) for address in addresses]

    def _serving(self, address: Address, subscription: GroupHandler | None) -> Serving:
        if isinstance(subscription, Subscription):
            return subscription.serving
        if address in self.prefixes:
            return self.prefixes[address].serving
        if not address.is_queue:
            topic = self.topics.get(address.name)
            return Serving(address, 0 if topic is None or subscription is None else topic.settings.shards)
        settings = self.queues.get(address) or QueueSettings(name=address)
        orders = (task.settings.order for task in self.tasks.values() if task.settings.queue == address)
        max_consumers = None if settings.consumers is None else settings.consumers[1]
        return Serving(address, settings.shards, max_consumers, next((order for order in orders if order is not None), None))


def _rules(order: OrderRules | None) -> str:
    rules = order or OrderRules()
    return f"on_failure={'stop' if rules.stop else 'skip'!r} and max_pending_per_key={rules.max_pending}"
