"""Worker processes as their supervisor sees them: started, listened to, told."""

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
"""How long a dead child's last words may take to be read."""


class Child:
    """One worker process."""

    def __init__(self, process: asyncio.subprocess.Process, orders: messages.Orders, stacks: Stacks | None = None) -> None:
        self.process = process
        self.orders = orders
        self.stacks = stacks
        self.started = time.monotonic()
        self.heard = time.monotonic()
        self.welcomed = False
        """It was told that the supervisor is ready. Until then it waits, and says nothing after its Hello."""
        self.hello: messages.Hello | None = None
        self.served_since: float | None = None
        self.bye: messages.Bye | None = None
        self.longest_timeout = 0.0
        self.leases: set[tuple[Address, str]] = set()
        self.held: int | None = None
        """How many jobs it held when it last said; None: it has not said yet."""
        self.reported: Mapping[str, int] = NOTHING
        """What it had settled then."""
        self.memory = 0
        """Bytes it took then."""
        self.interrupted = 0
        """Handlers that its deadline has ended, as far as it has said."""
        self.told_to_stop = False
        self.killed = False
        self.cut_off = False
        """It was killed because the worker stops."""
        self.retiring = False
        """It was asked to go while it had nothing to do, and goes."""
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
        """What it settled, as far as it could say."""
        return self.reported if self.bye is None else self.bye.totals

    @property
    def silent(self) -> float:
        """Seconds for which its loop has not turned, as far as we can tell. 0 until it is welcomed: it does not beat before."""
        return time.monotonic() - self.heard if self.welcomed else 0.0

    def lived(self, code: int) -> float:
        """Seconds for which it served before it ended with this code; also those in which it waited for a server."""
        if self.served_since is not None:
            return time.monotonic() - self.served_since
        return time.monotonic() - self.started if code == codes.SERVER else 0.0

    def was_blameless(self, held: int | None) -> bool:
        """Whether it died of something it ran, as far as anybody knows; ``held``: how many jobs it had, None: not known."""
        return self.hello is not None and (held != 0 or self.hello.fleeting)

    def had_something(self, held: int | None) -> bool:
        """Whether it had something in its hands when it ended, by what was given up, or by its own last word of what no lease
        holds. When that is not known it had."""
        return held != 0 or (self.hello is not None and self.hello.fleeting and self.held != 0)

    def welcome(self) -> None:
        """Tell it that the supervisor is ready. From now on it must show that its loop turns."""
        self.heard, self.welcomed = time.monotonic(), True
        self.say(messages.Ready())

    def say(self, word: messages.Word) -> None:
        """Nothing happens if it has not said anything yet."""
        if self.writer is not None:
            messages.say(self.writer, word)

    def signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def dump_stacks(self) -> None:
        """Have it log where each of its threads is."""
        self.signal(signal.SIGUSR1)
        await asyncio.sleep(0.5)


async def spawn(orders: messages.Orders, hear: Callable[[Child, messages.Word], Awaitable[None]]) -> Child:
    """Start one; every word it says is heard, in order."""
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
            start_new_session=True,  # Ctrl-C in a terminal reaches us alone; we tell the children
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
    """What a dead child said last counts. Not for ever: a process it forked may have its end of the socket."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(child.listening, LAST_WORDS_SECONDS)
    if child.stacks is not None:
        child.stacks.close()
