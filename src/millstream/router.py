"""Routers: tasks, queues and topics declared outside an app, which apps include."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, cast

from millstream.client import Clients
from millstream.codec import Codec, CodecName, EventCodec
from millstream.declarations import Declarations, Subscribe
from millstream.errors import UsageError
from millstream.events.batch import Batch
from millstream.events.broadcast import BroadcastOptions
from millstream.events.dead_event import DeadOptions
from millstream.events.subscription import SubscribeOptions, Subscription
from millstream.events.topic import Topic
from millstream.jobs.queue import Queue
from millstream.jobs.task import Task, make_task
from millstream.model.ordering import KeyOf
from millstream.model.settings import AppSettings, QueueSettings, TopicSettings
from millstream.model.settings import name as checked_name
from millstream.options import TaskOptions, task_settings
from millstream.reporting.observers import Observers

if TYPE_CHECKING:
    from millstream.app import Millstream

T = TypeVar("T")

Declare = Callable[["Millstream", str, "str | None"], None]
"""Adds one declaration to an app, with a prefix for its name and a default queue."""


class Router(Declarations):
    """A group of declarations for an app, for example of one module: ``app.include_router(router)``.

    A router has the decorators of an app. Routers can include routers: their prefixes are joined, the outer one first, and the
    inner ``queue`` wins. Until an app includes the router, sending through it raises ``UsageError``. Calling a task's function
    directly always works.

    Args:
        prefix: Text before the names of the router's tasks. Queues and topics keep their names. Empty by default.
        queue: Queue of tasks that have no ``queue`` option. ``None`` uses ``"default"``.

    Raises:
        UsageError: ``prefix`` or ``queue`` is not a valid name.
    """

    def __init__(self, *, prefix: str = "", queue: str | None = None) -> None:
        self._prefix = checked_name(prefix, "prefix") if prefix else ""
        self._queue = None if queue is None else checked_name(queue, "queue")
        self._declared: list[tuple[Declare, str, str | None]] = []
        """Each declaration, with the joined prefix and the queue of the inner routers that it came through."""
        self._apps: list[weakref.ref[Millstream]] = []
        self._outer: list[Router] = []
        self._settings = AppSettings()
        """Defaults until an app includes the router. Each app then uses its own settings."""

    def include_router(self, router: Router) -> None:
        """Add everything that another router declares, now or later, to this router.

        Raises:
            UsageError: This router already includes it, or would include itself.
        """
        check_router(router)
        if router is self or router in self._including():
            raise UsageError(f"{router!r} cannot be included in {self!r}: it would include itself")
        if self in router._outer:
            raise UsageError(f"{self!r} already includes {router!r}: include it once")
        for declare, prefix, queue in list(router._declared):
            self._add(declare, router._prefix + prefix, queue or router._queue)
        router._outer.append(self)

    def attach(self, app: Millstream) -> None:
        """Add all declarations to an app. Called by ``app.include_router``."""
        if any(reference() is app for reference in self._apps):
            raise UsageError(f"this app already includes {self!r}: include it once")
        for declare, prefix, queue in list(self._declared):
            declare(app, self._prefix + prefix, queue or self._queue)
        self._apps.append(weakref.ref(app))

    def _including(self) -> Iterator[Router]:
        """Yield the routers that include this one, directly or indirectly."""
        for outer in self._outer:
            yield outer
            yield from outer._including()

    def _add(self, declare: Declare, prefix: str = "", queue: str | None = None) -> None:
        self._declared.append((declare, prefix, queue))
        for outer in self._outer:
            outer._add(declare, self._prefix + prefix, queue or self._queue)
        for reference in self._apps:
            app = reference()
            if app is not None:
                declare(app, self._prefix + prefix, queue or self._queue)

    # -- declarations ------------------------------------------------------------------------------------------------------

    def _declare_task(self, fn: Any, own_name: str, options: TaskOptions) -> Task[..., Any]:
        def named(prefix: str, queue: str | None) -> TaskOptions:
            default: Any = {} if queue is None else {"queue": queue}
            return cast(TaskOptions, {**default, **options, "name": prefix + options.get("name", own_name)})

        settings = task_settings(named(self._prefix, self._queue), own_name, self._settings)
        clients = self._clients_until_included(f"task {settings.name!r}")
        task = make_task(fn, settings, options.get("order_by"), clients, _Any())
        task.wait_for_app()

        def declare(app: Declarations, prefix: str, queue: str | None) -> None:
            task.become(app._declare_task(fn, own_name, named(prefix, queue)))

        self._add(declare)
        return task

    def _declare_queue(self, settings: QueueSettings) -> Queue:
        queue = Queue(settings, self._clients_until_included(f"queue {settings.name!r}"))

        def declare(app: Declarations, prefix: str, default: str | None) -> None:
            vars(queue).update(vars(app._declare_queue(settings)))

        self._add(declare)
        return queue

    def _declare_topic(self, settings: TopicSettings, type: Any, codec: CodecName | Codec, key_of: KeyOf | None) -> Topic[Any]:
        what = f"topic {settings.name!r}"

        async def consume(_: Subscription) -> NoReturn:
            self._refuse(what)

        codec_of_it = EventCodec(settings.name, type, codec)
        parts = (settings, codec_of_it, self._clients_until_included(what), self._settings, consume, key_of)
        topic: RouterTopic[Any] = RouterTopic(Topic(*parts), self._add, *parts)

        def declare(app: Declarations, prefix: str, queue: str | None) -> None:
            vars(topic).update(vars(app._declare_topic(settings, type, codec, key_of)))

        self._add(declare)
        return topic

    def _declare_prefix(self, prefix: str, group: str, subscribe: Subscribe) -> None:
        def declare(app: Declarations, _: str, __: str | None) -> None:
            app._declare_prefix(prefix, group, subscribe)

        self._add(declare)

    # -- before an app includes it -----------------------------------------------------------------------------------------

    def _clients_until_included(self, what: str) -> Clients:
        """Return clients that refuse to send. An app replaces them when it includes the router."""
        return Clients(partial(self._refuse, what), {}, {}, {}, Observers())

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(f"{what} belongs to {self!r}, which no app includes: call app.include_router(router) first")

    def __repr__(self) -> str:
        return f"<router {self._prefix!r}>" if self._prefix else "<router>"


def check_router(router: object) -> None:
    """Raise ``UsageError`` unless this is a ``Router``."""
    if not isinstance(router, Router):
        raise UsageError(f"include_router() takes a Router, not {router!r}")


class RouterTopic(Topic[T]):
    """A topic of a router. Handlers declared on it are added to the same topic of every app that includes the router."""

    def __init__(self, draft: Topic[Any], add: Callable[[Declare], None], *parts: Any) -> None:
        super().__init__(*parts)
        self._draft = draft
        """A topic outside any app, which checks declarations before an app includes the router."""
        self._add = add

    def subscribe(
        self,
        group: str,
        *,
        batch: Batch | None = None,
        dead_letter: Topic[T] | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> Any:
        check: Any = self._draft.subscribe(group, batch=batch, **options)
        if dead_letter is not None and not isinstance(dead_letter, Topic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"dead_letter must be a topic made by router.topic(…), not {dead_letter!r}")

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            check(fn)

            def on(app: Millstream, _: str, __: str | None) -> None:
                target = None if dead_letter is None else app.topics.get(dead_letter.name)
                if dead_letter is not None and target is None:
                    raise UsageError(
                        f"group {group!r} of {self!r} has dead_letter={dead_letter!r}, but this app does not declare that "
                        "topic: include its router first"
                    )
                topic: Any = app.topics[self.name]
                topic.subscribe(group, batch=batch, dead_letter=target, **options)(fn)

            self._add(on)
            return fn

        return declare

    def on_dead(self, group: str, **options: Unpack[DeadOptions]) -> Any:
        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            self._draft.on_dead(group, **options)(fn)
            self._add(lambda app, _, __: cast(None, app.topics[self.name].on_dead(group, **options)(fn)))
            return fn

        return declare

    def broadcast(self, *fn: Any, **options: Any) -> Any:
        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            said = cast(BroadcastOptions, options)
            self._draft.broadcast(**said)(fn)
            self._add(lambda app, _, __: cast(None, app.topics[self.name].broadcast(**said)(fn)))
            return fn

        if not fn:
            return declare
        if len(fn) != 1 or options:
            raise UsageError("broadcast() takes one function or keyword options: @topic.broadcast or @topic.broadcast(…)")
        return declare(*fn)


class _Any(Collection[str]):
    """Accepts any queue name, because the apps that include the router are not known yet."""

    def __contains__(self, _: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
