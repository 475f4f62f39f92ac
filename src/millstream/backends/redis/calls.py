"""Run scripts with the keys of an address. A script is loaded when the server does not have it."""

from __future__ import annotations

from typing import Any

from millstream.backends.redis.connect import ScriptMissing
from millstream.backends.redis.keys import namespace_keys, queue_keys
from millstream.backends.redis.link import Link
from millstream.backends.redis.scripts import Script
from millstream.model.address import Address


class Calls:
    """Runs scripts, by default over one connection."""

    def __init__(self, namespace: str, commands: Link) -> None:
        self.clock_ms = 0
        """The time in ms that scripts use. 0 means the server's clock."""
        self._namespace = namespace
        self._commands = commands
        self._scripts: dict[tuple[str, bool], Script] = {}
        self._calls: dict[tuple[str, Address | None], tuple[str | int, ...]] = {}
        self._queue_keys: dict[str, dict[str, str]] = {}

    def names(self, queue: Address | None) -> dict[str, str]:
        """Return the keys of an address by word. ``None`` stands for the namespace."""
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
        """Run one script and return its reply. If the server does not have the script, load the script and send the call again.

        ``before`` is a command that is sent in the same write and may block for ``block`` seconds. ``within`` is a shorter
        timeout in seconds.
        """
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
            # One write for both, so that nobody can flush the scripts in between.
            return (await link.call_together((("SCRIPT", "LOAD", self._script(name, queue).text), command)))[-1]
