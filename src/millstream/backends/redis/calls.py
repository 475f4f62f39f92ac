"""Run scripts and commands on the node that has the keys of an address. A script is loaded when the server does not have it."""

from __future__ import annotations

from typing import Any

from redis.crc import key_slot

from millstream.backends.redis.connect import Redirected, ScriptMissing
from millstream.backends.redis.keys import namespace_keys, queue_keys
from millstream.backends.redis.link import Link, ServerChanged
from millstream.backends.redis.scripts import Script
from millstream.backends.redis.topology import Node, Topology
from millstream.model.address import Address

Command = tuple[Any, ...]

REDIRECTIONS = 5
"""Maximum number of nodes that one call is sent to. Further redirections mean that the nodes disagree."""


class Calls:
    """Runs scripts and commands, by default over the shared link of the address's node."""

    def __init__(self, namespace: str, topology: Topology) -> None:
        self.clock_ms = 0
        """The time in ms that scripts use. 0 means the server's clock."""
        self._namespace = namespace
        self._topology = topology
        self._scripts: dict[tuple[str, bool], Script] = {}
        self._calls: dict[tuple[str, Address | None], tuple[str | int, ...]] = {}
        self._queue_keys: dict[str, dict[str, str]] = {}
        self._slots: dict[str, int] = {}

    def node(self, queue: Address | None) -> Node:
        """Return the node that has the keys of an address. ``None`` stands for the namespace.

        Raises BrokerUnavailable if there is none now.
        """
        slot = self._slots.get(queue or "")
        if slot is None:
            key = next(iter(self.names(queue).values()))
            slot = self._slots[queue or ""] = key_slot(key.encode())
        return self._topology.node(slot)

    async def run_id(self, queue: Address | None) -> str:
        """Connect to the node of an address, and return the run id of its server. Empty if the user may not read it."""
        commands = self.node(queue).commands
        await commands.ready()
        return commands.run_id

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

    async def run(self, name: str, queue: Address | None, *args: Any, within: float = 0.0, only_on: str = "") -> Any:
        """Run one script and return its reply. If the server does not have the script, load the script and send the call again.

        ``within`` is a shorter timeout in seconds. If the server's run id is not ``only_on``, the call raises ServerChanged.
        """
        command = self._command(name, queue, args)
        node = self.node(queue)
        try:
            return await node.commands.call(*command, within=within, only_on=only_on)
        except ScriptMissing:
            return (await node.commands.call_together((self._loading(name, queue), command), only_on=only_on))[-1]
        except Redirected as error:
            if only_on:
                self._topology.redirect(error, node)
                raise ServerChanged(str(error)) from error
            return await self._redirected(error, node, command, self._loading(name, queue))

    async def run_on(
        self,
        node: Node,
        link: Link,
        name: str,
        queue: Address,
        *args: Any,
        before: Command | None = None,
        block: float = 0.0,
    ) -> Any:
        """Run one script over a link of its own to this node, as ``run`` does.

        ``before`` is a command that is sent in the same write and may block for ``block`` seconds. If the address is on another
        node, the call raises BrokerUnavailable, and ``node()`` returns the right one from then on. Part of the call may have
        run.
        """
        command = self._command(name, queue, args)
        try:
            if before is None:
                return await link.call(*command)
            return (await link.call_together((before, command), block=block))[-1]
        except ScriptMissing:
            return (await link.call_together((self._loading(name, queue), command)))[-1]
        except Redirected as error:
            self._topology.redirect(error, node)
            raise

    async def call(self, queue: Address | None, *command: Any) -> Any:
        """Send one command about the keys of an address and return its reply."""
        node = self.node(queue)
        try:
            return await node.commands.call(*command)
        except Redirected as error:
            return await self._redirected(error, node, command)

    def _command(self, name: str, queue: Address | None, args: Command) -> Command:
        call = self._calls.get((name, queue))
        if call is None:
            call = self._calls[name, queue] = self._script(name, queue).call(self.names(queue))
        return (*call, self.clock_ms, *args)

    def _loading(self, name: str, queue: Address | None) -> Command:
        """Return the command that loads a script. It is sent in one write with the call, so that nobody can flush the scripts
        in between."""
        return ("SCRIPT", "LOAD", self._script(name, queue).text)

    async def _redirected(self, error: Redirected, node: Node, command: Command, loading: Command | None = None) -> Any:
        """Send a command that did not run to the node that was named instead. A script is loaded there first."""
        for _ in range(REDIRECTIONS):
            node = self._topology.redirect(error, node)
            asking = (("ASKING",),) if error.once else ()
            try:
                return (await node.commands.call_together((*((loading,) if loading else ()), *asking, command)))[-1]
            except Redirected as another:
                error = another
        raise error
