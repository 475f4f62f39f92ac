"""The catalog: what an app declares, and what of it a worker serves."""

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
    """Tasks, queues, topics and groups by prefix, each under its name."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task[..., Any]] = {}
        """By name, and by alias."""
        self.queues: dict[str, QueueSettings] = {}
        """Every queue that a declaration mentions."""
        self.topics: dict[str, Topic[Any]] = {}
        self.prefixes: dict[Address, PrefixSubscription] = {}
        """What handles the events of topics by the beginnings of their names."""

    # -- declaring ---------------------------------------------------------------------------------------------------------

    def check_task(self, settings: TaskSettings) -> None:
        """UsageError if a task of these settings does not fit those that are here."""
        names = (settings.name, *settings.aliases)
        for name in names:
            if name in self.tasks or names.count(name) > 1:
                by = f", by {self.tasks[name].fn.__module__}" if name in self.tasks else ""
                raise UsageError(f"there is a task {name!r} already{by}: names are unique in an app, use name= for another")
        for other in self.tasks.values():
            rules, same_queue = other.settings.order, other.settings.queue == settings.queue
            if same_queue and rules is not None and settings.order is not None and rules != settings.order:
                raise UsageError(
                    f"task {settings.name!r} has {_rules(settings.order)}, and {other!r} has {_rules(rules)}: that holds for a "
                    "whole queue; say the same for both, or give one a queue of its own"
                )

    def add_task(self, task: Task[..., Any]) -> None:
        """Add a task that was checked, and its queue."""
        settings = task.settings
        self.queues.setdefault(settings.queue, QueueSettings(name=settings.queue))
        self.tasks.update(dict.fromkeys((settings.name, *settings.aliases), task))

    def add_prefix(self, subscription: PrefixSubscription) -> None:
        """UsageError if another handler of its group may meet the same topics."""
        prefix, group = subscription.prefix, subscription.group
        for other in self.prefixes.values():
            if other.group == group and (other.prefix.startswith(prefix) or prefix.startswith(other.prefix)):
                raise UsageError(
                    f"group {group!r} of topics {prefix!r}… has a handler already, for {other.prefix!r}…: "
                    "give this one another group"
                )
        self.prefixes[subscription.address] = subscription

    def resolve(self) -> None:
        """Check what could not be checked while declarations were missing: every annotation, and who handles dead letters."""
        for task in self.tasks.values():
            task.arguments.resolve()
            task.returns.resolve()
        for topic in self.topics.values():
            for group in topic.dead_handlers.keys() - topic.subscriptions.keys():
                raise UsageError(f"on_dead({group!r}) of topic {topic.name!r}: nothing subscribes under that group")

    # -- handlers ----------------------------------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> Mapping[Address, GroupHandler]:
        """What handles events and dead letters, by address: a group's, and behind it that of its dead letters."""
        found: dict[Address, GroupHandler] = {}
        for topic in self.topics.values():
            for each in topic.subscriptions.values():
                found[each.address] = each
                if each.group in topic.dead_handlers:
                    found[each.address.dead] = topic.dead_handlers[each.group]
        return found

    def subscriptions_at(self, addresses: Iterable[Address]) -> Mapping[Address, GroupHandler]:
        """``subscriptions``, and those by prefix whose groups are at these addresses."""
        found = dict(self.subscriptions)
        for address in addresses:
            prefix = next((prefix for prefix in self.prefixes.values() if prefix.serves(address)), None)
            if prefix is not None and address not in found:
                found[address] = prefix.to(address.log)
        return found

    @property
    def broadcasts(self) -> Sequence[Broadcast]:
        """What handles events in every worker process."""
        return [each for topic in self.topics.values() for each in topic.broadcasts]

    # -- serving -----------------------------------------------------------------------------------------------------------

    def to_serve(self, wanted: Iterable[str]) -> list[Address]:
        """What a worker serves: those wanted, else every queue its tasks are sent to, every group it subscribes, and every
        topic (``topic/``) that is broadcast; groups with their dead letters, where code handles them. UsageError if that is
        none."""
        broadcast = dict.fromkeys(each.address for each in self.broadcasts)
        served = [*(map(Address, self.queues) if self.tasks else ()), *self.subscriptions, *self.prefixes, *broadcast]
        names = [Address(name) for name in dict.fromkeys(wanted)]
        for topic in self.topics.values():  # what follows an ordered topic follows each shard
            if topic.broadcasts and topic.settings.shards and (base := Address.of_topic(topic.name)) in names:
                names[names.index(base) : names.index(base) + 1] = base.shards(topic.settings.shards)
        names += [address for name in names if (address := name.dead) in served and address not in names]
        if not served:
            raise UsageError(
                "this app has no tasks, subscriptions or broadcasts, so there is nothing to serve; does include= name the "
                "modules that declare them?"
            )
        for name in names:
            if not {name, name.base}.intersection(served) and not any(prefix.serves(name) for prefix in self.prefixes.values()):
                known = ", ".join(map(repr, served))
                raise UsageError(f"the app declares no queue {name!r}; it has {known}")
        return names or served

    def serving(self, addresses: Iterable[Address]) -> list[Serving]:
        """How a worker serves these addresses, each as ``to_serve`` tells it: shards, consumers and order."""
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
