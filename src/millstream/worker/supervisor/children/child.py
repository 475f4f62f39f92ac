"""A worker process as its supervisor sees it: starting it, and exchanging messages and signals with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from millstream.model.address import Address
from millstream.worker import codes, messages, roles
from millstream.worker.summary import NOTHING
from millstream.worker.supervisor.children.stacks import Stacks

LAST_WORDS_SECONDS = 0.5
"""Maximum seconds for reading the last messages of a dead child."""


class Child:
    """One worker process."""

    def __init__(self, process: asyncio.subprocess.Process, orders: messages.Orders, stacks: Stacks | None = None) -> None:
        self.process = process
        self.orders = orders
        self.stacks = stacks
        self.started = time.monotonic()
        self.heard = time.monotonic()
        self.welcomed = False
        """The supervisor has sent Ready. Until then the child waits and sends nothing after its Hello."""
        self.hello: messages.Hello | None = None
        self.served_since: float | None = None
        self.bye: messages.Bye | None = None
        self.longest_timeout = 0.0
        self.leases: set[tuple[Address, str]] = set()
        self.held: int | None = None
        """Number of messages that the child held at its last beat. None before the first beat."""
        self.reported: Mapping[str, int] = NOTHING
        """Settled outcomes at the last beat."""
        self.memory = 0
        """Resident bytes at the last beat."""
        self.interrupted = 0
        """Number of handlers that the shutdown interrupted, as last reported."""
        self.told_to_stop = False
        self.killed = False
        self.cut_off = False
        """The child was killed while the worker was stopping."""
        self.retiring = False
        """The idle child was asked to end, and agreed."""
        self.answers: asyncio.Queue[messages.Retiring | messages.Busy] = asyncio.Queue()
        self.writer: asyncio.StreamWriter | None = None
        self.listening: asyncio.Task[None]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def spare(self) -> bool:
        return self.orders.suspects_only

    @property
    def totals(self) -> Mapping[str, int]:
        """Settled outcomes, as last reported."""
        return self.reported if self.bye is None else self.bye.totals

    @property
    def silent(self) -> float:
        """Seconds since the last message of the child. 0 before ``welcome``, because a child sends no beats until then."""
        return time.monotonic() - self.heard if self.welcomed else 0.0

    def lived(self, code: int) -> float:
        """Return the seconds for which the child served, or waited for a server, before it ended with this code."""
        if self.served_since is not None:
            return time.monotonic() - self.served_since
        return time.monotonic() - self.started if code == codes.SERVER else 0.0

    def was_blameless(self, held: int | None) -> bool:
        """Return whether a job, and not the child itself, may have caused the child's death. ``held``: number of jobs that the
        child held, or None if unknown."""
        return self.hello is not None and (held != 0 or self.hello.fleeting)

    def had_something(self, held: int | None) -> bool:
        """Return whether the child held messages when it ended. If that is unknown, return True.

        ``held`` counts messages under its leases. For messages without a lease, the child's last beat decides.
        """
        return held != 0 or (self.hello is not None and self.hello.fleeting and self.held != 0)

    def welcome(self) -> None:
        """Send Ready. From now on, the child must send beats."""
        self.heard, self.welcomed = time.monotonic(), True
        self.say(messages.Ready())

    def say(self, word: messages.Word) -> None:
        """Send a message. Does nothing before the child is connected."""
        if self.writer is not None:
            messages.say(self.writer, word)

    def signal(self, number: int) -> None:
        """Send a signal. Does nothing if the child has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def dump_stacks(self) -> None:
        """Make the child dump the stacks of all its threads."""
        self.signal(signal.SIGUSR1)
        await asyncio.sleep(0.5)


async def spawn(orders: messages.Orders, hear: Callable[[Child, messages.Word], Awaitable[None]]) -> Child:
    """Start a child. ``hear`` is called with each of its messages, in order."""
    ours, theirs = socket.socketpair()
    stacks: Stacks | None = None
    try:
        stacks = Stacks()
        orders = msgspec.structs.replace(orders, fd=theirs.fileno(), stacks_fd=stacks.theirs)
        process = await asyncio.create_subprocess_exec(
            *roles.command(orders.app, "child"),
            env={**os.environ, roles.ORDERS: messages.encode_orders(orders)},
            pass_fds=(theirs.fileno(), stacks.theirs),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal reaches only the supervisor, which stops the children
        )
    except BaseException:
        ours.close()
        if stacks is not None:
            stacks.close()
        raise
    finally:
        theirs.close()
    stacks.started(process.pid)
    child = Child(process, orders, stacks)
    child.listening = asyncio.create_task(_listen(child, ours, hear))
    return child


async def _listen(child: Child, ours: socket.socket, hear: Callable[[Child, messages.Word], Awaitable[None]]) -> None:
    reader, child.writer = await messages.streams(ours)
    try:
        while (word := await messages.hear(reader)) is not None:
            child.heard = time.monotonic()
            match word:
                case messages.Hello():
                    child.hello, child.longest_timeout, child.served_since = word, word.longest_timeout, time.monotonic()
                case messages.Longer(timeout):
                    child.longest_timeout = timeout
                case messages.Beat(held, totals, interrupted, memory):
                    child.held, child.reported, child.interrupted, child.memory = held, totals, interrupted, memory
                case messages.Bye():
                    child.bye, child.interrupted = word, word.interrupted
                case messages.Retiring() | messages.Busy():
                    child.answers.put_nowait(word)
                case _:
                    pass
            await hear(child, word)
    finally:
        child.writer.close()


async def heard_out(child: Child) -> None:
    """Read the last messages of a dead child, for a limited time: a process that it forked may keep its socket open."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(child.listening, LAST_WORDS_SECONDS)
    if child.stacks is not None:
        child.stacks.close()
