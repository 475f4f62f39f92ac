"""The supervisor: keeps worker processes running, and their leases.

It never imports user code, so no handler can starve it; of its problems a child tells the app's observers (``relay``).
When a child dies its leases are given up at once, and its jobs run elsewhere within a second instead of a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path

import msgspec

from millstream.address import spoken
from millstream.broker import Broker
from millstream.config import parse_url
from millstream.errors import BrokerError, LeaseLost, WorkerCrashed
from millstream.message import decode_message
from millstream.outcome import Outcome
from millstream.reporter import Reporter
from millstream.rooms import make_room
from millstream.settings import AppSettings
from millstream.worker import codes, verdict, wire
from millstream.worker.hot.hold import BATCH
from millstream.worker.logs import configure_logging
from millstream.worker.relay import Relay
from millstream.worker.services import keep_running
from millstream.worker.services.keeper import Keeper

log = logging.getLogger("millstream.worker")

KILL_SECONDS = 10.0
"""How long beyond its grace period a child may take to stop before it is killed."""

RESTART_SECONDS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Waits before a child that died is started again; longer when it dies again soon."""

SOON_SECONDS = 5.0
"""A child that lived this long was not one that dies at once."""

LAST_WORDS_SECONDS = 0.5
"""How long a dead child's last words may take to be read."""

GIVE_UP_SECONDS = 5.0
"""How long a supervisor that is stopping tries to give up the leases of a child; what it cannot give up lapses."""

RELOAD_SECONDS = 0.5
"""How often source files are looked at with --reload."""


class Plan(msgspec.Struct, frozen=True):
    """What to run."""

    orders: wire.Orders
    processes: int = 1
    reload: bool = False


class Child:
    """One worker process."""

    def __init__(self, process: asyncio.subprocess.Process, orders: wire.Orders) -> None:
        self.process = process
        self.orders = orders
        self.started = time.monotonic()
        self.heard = time.monotonic()
        self.hello: wire.Hello | None = None
        self.longest_timeout = 0.0
        self.leases: set[tuple[str, str]] = set()
        self.told_to_stop = False
        self.listening: asyncio.Task[None]

    @property
    def spare(self) -> bool:
        return self.orders.suspects_only


class Supervisor:
    """Runs a Plan until a signal, or until a burst is over."""

    def __init__(self, plan: Plan, open_broker: Callable[[wire.Hello], Awaitable[Broker]]) -> None:
        self._plan = plan
        self._open_broker = open_broker
        self._broker: Broker | None = None
        self._keeper: Keeper | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._children: set[Child] = set()
        self._lives: set[asyncio.Task[None]] = set()
        self._giving_up: set[asyncio.Task[int]] = set()
        self._stopping = False
        self._signals = 0
        self._sparing = False
        self._code = codes.OK
        self._opening = asyncio.Lock()
        self._relay = Relay()
        self._reporter = Reporter(self._relay, log)
        self._reloads = 0
        self._changed = asyncio.Event()
        """Set when a source file changed, and when the worker stops."""
        self._over = asyncio.Event()

    async def run(self) -> int:
        """Start the children, keep them, and return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        for _ in range(self._plan.processes):
            self._begin(self._plan.orders)
        watching = asyncio.create_task(self._watch())
        reloading = asyncio.create_task(self._reload()) if self._plan.reload else None
        await self._over.wait()
        for task in (watching, reloading, self._keeping):
            if task is not None:
                task.cancel()
        if self._broker is not None:
            await self._broker.close()
        return self._code

    # -- children ----------------------------------------------------------------------------------------------------------

    def _begin(self, orders: wire.Orders) -> None:
        life = asyncio.create_task(self._live(orders))
        self._lives.add(life)
        life.add_done_callback(self._lived)

    def _lived(self, life: asyncio.Task[None]) -> None:
        self._lives.discard(life)
        if not life.cancelled() and life.exception() is not None:
            log.critical("a child could not be kept", exc_info=life.exception())
            self._code = codes.FAILED
            self._stop()
        if not self._lives:
            self._over.set()

    async def _live(self, orders: wire.Orders) -> None:
        """One child after another, in the same place, until it is not needed any more."""
        deaths = 0
        while not self._stopping:
            child = await self._spawn(orders)
            if self._stopping:  # since it was begun
                self._tell(child)
            code = await child.process.wait()
            self._relay.dismiss(child)
            await _heard_out(child)
            self._children.discard(child)
            await self._bury(child, code)
            if child.spare:
                self._sparing = False
            if self._stopping or child.spare or (orders.burst and code == codes.OK):
                break
            if child.told_to_stop:
                deaths = 0  # a reload
                continue
            if child.hello is None and code in (codes.FAILED, codes.USAGE, codes.SERVER):
                if self._reloads and code != codes.SERVER:
                    log.error("the change does not work; waiting for the next one")
                    await self._changed.wait()
                    continue
                if self._broker is None:  # none has ever served: it is not the server that is away for a while
                    self._code = code
                    self._stop()
                    break
            deaths = 0 if time.monotonic() - child.started > SOON_SECONDS else deaths + 1
            await asyncio.sleep(RESTART_SECONDS[min(deaths, len(RESTART_SECONDS) - 1)])

    async def _spawn(self, orders: wire.Orders) -> Child:
        ours, theirs = socket.socketpair()
        orders = msgspec.structs.replace(orders, fd=theirs.fileno())
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "millstream.worker.child",
                wire.encode_orders(orders),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal reaches us alone; we tell the children
            )
        finally:
            theirs.close()
        child = Child(process, orders)
        self._children.add(child)
        child.listening = asyncio.create_task(self._listen(child, ours))
        return child

    async def _listen(self, child: Child, ours: socket.socket) -> None:
        reader, writer = await wire.streams(ours)
        try:
            while (word := await wire.hear(reader)) is not None:
                child.heard = time.monotonic()
                match word:
                    case wire.Hello():
                        await self._welcome(child, word, writer)
                    case wire.Keep(queue, consumer, lease):
                        child.leases.add((queue, consumer))
                        if self._keeper is not None:
                            self._keeper.keep(queue, consumer, lease)
                    case wire.Drop(queue, consumer):
                        child.leases.discard((queue, consumer))
                        if self._keeper is not None:
                            self._keeper.drop(queue, consumer)
                    case wire.Longer(timeout):
                        child.longest_timeout = timeout
                    case wire.Suspects(queue):
                        self._isolate(queue)
                    case wire.Beat() | wire.Ready() | wire.Trouble():
                        pass
        finally:
            writer.close()

    async def _welcome(self, child: Child, hello: wire.Hello, writer: asyncio.StreamWriter) -> None:
        child.hello = hello
        child.longest_timeout = hello.longest_timeout
        async with self._opening:
            if self._broker is None:
                try:
                    self._broker = await self._open_broker(hello)
                except BrokerError as error:
                    log.critical("the supervisor cannot reach the server: %s", error)
                    self._code = codes.SERVER
                    self._stop()
                    return
                self._keeper = Keeper(self._broker, self._reporter)
                self._keeping = asyncio.create_task(keep_running("keeper", self._keeper.run, self._reporter, "renew"))
                self._keeping.add_done_callback(self._keeper_ended)
                log.info(
                    "serving %s%s; %d process%s of %d coroutines and %d threads",
                    ", ".join([*map(spoken, hello.queues), *(f"broadcast {name!r}" for name in hello.broadcasts)]),
                    f": tasks {', '.join(hello.tasks)}" if hello.tasks else "",
                    self._plan.processes,
                    "" if self._plan.processes == 1 else "es",
                    self._plan.orders.concurrency,
                    self._plan.orders.threads,
                )
        wire.say(writer, wire.Ready())
        if hello.observed and not child.spare:
            self._relay.admit(child, writer)

    def _keeper_ended(self, keeping: asyncio.Task[None]) -> None:
        if not keeping.cancelled() and not self._stopping:
            log.critical("the keeper of the leases ended; so must the worker")
            self._code = codes.FAILED
            self._stop()

    async def _bury(self, child: Child, code: int) -> None:
        """A child has ended: whatever it held is given up at once."""
        if self._stopping and code == codes.INTERRUPTED:
            self._code = codes.INTERRUPTED
        held = await self._give_all_up(child)
        if code < 0 or held:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            self._died(child, f"{how}; {held} jobs it held can be claimed again")
        elif code not in (codes.OK, codes.INTERRUPTED):
            self._died(child, f"ended with code {code}")

    def _died(self, child: Child, how: str) -> None:
        died = f"worker process {child.process.pid} {how}"
        log.error("%s", died)
        if not child.told_to_stop:
            self._reporter.tell("reclaim", None, WorkerCrashed(died), crash=True)

    async def _give_all_up(self, child: Child) -> int:
        """Returns how many jobs can be claimed again."""
        if not child.leases:
            return 0
        for queue, consumer in child.leases:
            if self._keeper is not None:
                self._keeper.drop(queue, consumer)
        giving_up = {asyncio.create_task(self._give_up(child, queue, consumer)) for queue, consumer in child.leases}
        self._giving_up |= giving_up
        if self._stopping:
            self._let_lapse_later(giving_up)
        await asyncio.wait(giving_up)
        self._giving_up -= giving_up
        return sum(task.result() for task in giving_up if not task.cancelled())

    def _let_lapse_later(self, giving_up: Collection[asyncio.Task[int]]) -> None:
        asyncio.get_running_loop().call_later(GIVE_UP_SECONDS, _let_lapse, list(giving_up))

    async def _give_up(self, child: Child, queue: str, consumer: str) -> int:
        """If the server is away too, the lease lapses by itself; a few tries are worth the time it saves."""
        assert self._broker is not None and child.hello is not None
        for pause in (0.1, 0.5, 1.0, 2.0):
            try:
                if child.told_to_stop and child.hello.at_most_once:
                    await _end_started(self._broker, queue, consumer, child.hello.at_most_once)
                held = await self._broker.leave(queue, consumer, blameless=child.told_to_stop)
            except LeaseLost:
                held = 0
            except BrokerError as error:
                text = "a dead child's lease on queue %r could not be given up yet: %s"
                self._reporter.fail("reclaim", queue, error, text, queue, error)
                await asyncio.sleep(pause)
                continue
            self._reporter.heal("reclaim", queue)
            return held
        return 0

    def _isolate(self, queue: str) -> None:
        """Give suspects a process of their own, one at a time."""
        if self._stopping or self._sparing:
            return
        log.warning("queue %r has jobs that were running when workers died: a spare process runs each alone", queue)
        self._sparing = True
        self._begin(msgspec.structs.replace(self._plan.orders, queues=[queue], burst=False, suspects_only=True))

    # -- stopping ----------------------------------------------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        self._signals += 1
        if self._signals == 1:
            again = "; Ctrl-C again to stop now" if number == signal.SIGINT else ""
            log.info("stopping%s", again)
            self._stop()
        else:
            log.warning("stopping now")
            for child in self._children:
                self._kill(child)
            _let_lapse(self._giving_up)

    def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._changed.set()
        self._let_lapse_later(self._giving_up)
        for child in self._children:
            self._tell(child)
        if not self._lives:
            self._over.set()

    def _tell(self, child: Child) -> None:
        """Ask a child to stop, and see that it does."""
        child.told_to_stop = True
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(signal.SIGTERM)
        grace = child.hello.grace if child.hello is not None else 0.0
        asyncio.get_running_loop().call_later(grace + KILL_SECONDS, self._kill, child)

    def _kill(self, child: Child) -> None:
        if child not in self._children or child.process.returncode is not None:
            return
        log.error("worker process %d is killed", child.process.pid)
        child.told_to_stop = True
        self._code = codes.INTERRUPTED
        with contextlib.suppress(ProcessLookupError):
            child.process.kill()

    async def _watch(self) -> None:
        """Kill a child whose loop has not turned for longer than any of its jobs may take, after dumping its stacks."""
        while True:
            await asyncio.sleep(1.0)
            for child in list(self._children):
                hello = child.hello
                if hello is None or not child.longest_timeout:
                    continue
                silent = time.monotonic() - child.heard
                if silent > child.longest_timeout + hello.grace:
                    wedged = f"worker process {child.process.pid} has not turned its loop for {silent:.0f} s"
                    wedged += ", longer than any job may run"
                    log.error("%s; its stacks follow", wedged)
                    self._relay.dismiss(child)
                    self._reporter.tell("handler", None, WorkerCrashed(wedged), crash=True)
                    with contextlib.suppress(ProcessLookupError):
                        child.process.send_signal(signal.SIGUSR1)
                        await asyncio.sleep(0.5)
                        child.process.kill()
                    child.heard = time.monotonic()

    async def _reload(self) -> None:
        """Restart the children when a source file changes."""
        seen = _snapshot()
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            now = _snapshot()
            if now != seen:
                changed = sorted(str(path) for path, stamp in now.items() if seen.get(path) != stamp) or ["a deleted file"]
                log.info("reloading: %s changed", ", ".join(changed[:3]))
                seen = now
                self._reloads += 1
                self._changed.set()
                self._changed.clear()
                for child in list(self._children):
                    self._tell(child)


def _let_lapse(giving_up: Iterable[asyncio.Task[int]]) -> None:
    """The server does not answer and we must go."""
    for task in giving_up:
        if not task.done():
            log.warning("a dead child's lease could not be given up: it lapses")
            task.cancel()


async def _heard_out(child: Child) -> None:
    """What a dead child said last counts. Not for ever: a process it forked may have its end of the socket."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(child.listening, LAST_WORDS_SECONDS)


async def _end_started(broker: Broker, queue: str, consumer: str, at_most_once: Collection[str]) -> None:
    """A child that was told to stop is blamed for nothing and what it held is handed back, but for jobs that may start only
    once: they are never buffered, so they had started."""
    outcomes: list[Outcome] = []
    for entry in await broker.recover(queue, consumer, ()):
        with contextlib.suppress(msgspec.MsgspecError):  # whoever claims it next sees that it is malformed
            message = decode_message(entry.body or b"")
            if message.task in at_most_once or queue in at_most_once:
                outcomes.append(verdict.interrupted(entry.ref, message, entry.crashes, 0.0))
    for start in range(0, len(outcomes), BATCH):
        await broker.settle(queue, consumer, outcomes[start : start + BATCH])


def _snapshot() -> dict[Path, float]:
    """When each source file below the working directory last changed."""
    stamps: dict[Path, float] = {}
    for folder, folders, files in os.walk("."):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ("__pycache__", "node_modules")]
        for path in _sources(folder, files):
            with contextlib.suppress(OSError):
                stamps[path] = path.stat().st_mtime
    return stamps


def _sources(folder: str, files: Iterable[str]) -> Iterable[Path]:
    return (Path(folder, name) for name in files if name.endswith(".py"))


def main() -> None:
    """The process: ``python -m millstream.worker.supervisor PLAN``."""

    async def open_broker(hello: wire.Hello) -> Broker:
        settings = AppSettings(namespace=hello.namespace, id_ttl=hello.id_ttl)
        return await make_room(parse_url(hello.url), settings).connect()

    configure_logging()
    plan = msgspec.json.decode(sys.argv[1], type=Plan)

    async def run() -> int:
        return await Supervisor(plan, open_broker).run()

    sys.exit(asyncio.run(run()))


if __name__ == "__main__":
    main()
