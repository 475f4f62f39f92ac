"""Calls of the scripts: each loaded when it is first missing, with the keys of the address that it is about."""

from __future__ import annotations

from typing import Any

from millstream.backends.redis.connect import ScriptMissing
from millstream.backends.redis.keys import namespace_keys, queue_keys
from millstream.backends.redis.link import Link
from millstream.backends.redis.scripts import Script
from millstream.model.address import Address


class Calls:
    """Runs transitions, over one connection unless told otherwise."""

    def __init__(self, namespace: str, commands: Link) -> None:
        self.clock_ms = 0
        """What every script reads as the time; 0: the server's own."""
        self._namespace = namespace
        self._commands = commands
        self._scripts: dict[tuple[str, bool], Script] = {}
        self._calls: dict[tuple[str, Address | None], tuple[str | int, ...]] = {}
        self._queue_keys: dict[str, dict[str, str]] = {}

    def names(self, queue: Address | None) -> dict[str, str]:
        """The keys at an address, or of the namespace, by word."""
        cached = self._queue_keys.get(queue or "")
        if cached is None:
            cached = namespace_keys(self._namespace) if queue is None else queue_keys(self._namespace, queue)
            self._queue_keys[queue or ""] = cached
        return cached

    def _script(self, name: str, queue: Address | None) -> Script:
        of_group = queue is not None and not queue.is_queue and not queue.is_dead
        script = self._scripts.get((name, of_group))
        if script is None:
            script = self._scripts[name, of_group] = Script(name, of_group=of_group)
        return script

    async def run(
        self,
        name: str,
        queue: Address | None,
        *args: Any,
        link: Link | None = None,
        before: tuple[Any, ...] | None = None,
        block: float = 0.0,
        within: float = 0.0,
    ) -> Any:
        """Run one transition; ``before`` is a command sent in the same write. ``within``: seconds in which the server must
        answer, if that is less than usual. Sent once: only a script that is not loaded, and so did not run, is sent again."""
        call = self._calls.get((name, queue))
        if call is None:
            call = self._calls[name, queue] = self._script(name, queue).call(self.names(queue))
        link = link or self._commands
        command = (*call, self.clock_ms, *args)
        try:
            if before is None:
                return await link.call(*command, within=within)
            return (await link.call_together((before, command), block=block))[-1]
        except ScriptMissing:
            # In one write, so that it cannot be flushed in between.
            return (await link.call_together((("SCRIPT", "LOAD", self._script(name, queue).text), command)))[-1]
