"""Observers: user functions that receive problems. They run in a separate thread, so that they cannot delay anything else."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from millstream.errors import UsageError
from millstream.reporting import logs
from millstream.reporting.problem import Problem

log = logs.logger("millstream")

Observer = Callable[[Problem], Awaitable[None] | None]
"""A function or coroutine function that takes a Problem."""

MOST_WAITING = 1000
"""Maximum number of problems waiting for slow observers. Further problems are counted and dropped."""

IDLE_SECONDS = 10.0
"""The thread ends after this long without a problem."""

DELIVER_SECONDS = 1.0
"""How long a closing worker, app or process waits for the delivery of pending problems."""

Told = Callable[[], None]
"""Called by the thread when all earlier problems have been delivered."""


class Observers:
    """An app's observers. The thread starts with the first problem. A forked child starts its own.

    ``tell`` never waits for an observer. It may be called from any thread and from a finalizer.
    """

    def __init__(self) -> None:
        self._functions: list[Observer] = []
        self._failing: dict[Observer, int] = {}
        """Number of consecutive failures of each observer."""
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        # A finalizer may run at any point, also inside these methods. So the same thread must be able to enter the lock and
        # the queue again.
        self._lock = threading.RLock()
        self._waiting: SimpleQueue[Problem | Told] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._goodbye: weakref.finalize[..., Observers] | None = None
        self._missed = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        """Event loop for observers that are coroutine functions. It outlives the thread."""

    def add(self, observer: Observer) -> None:
        """Add an observer. Raises UsageError if it cannot be called with a Problem."""
        if not callable(observer):
            raise UsageError(f"an observer must be a function that takes one argument, a Problem, not {observer!r}")
        if inspect.isgeneratorfunction(observer) or inspect.isasyncgenfunction(observer):
            raise UsageError(f"observer {_name(observer)} is a generator and would never run: remove its yield")
        try:
            inspect.signature(observer).bind(None)
        except TypeError as error:
            raise UsageError(f"observer {_name(observer)} must take one argument, a Problem: {error}") from None
        except ValueError:
            pass  # some builtins have no signature
        self._functions.append(observer)

    @property
    def listening(self) -> bool:
        """Whether there are observers."""
        return bool(self._functions)

    def tell(self, problem: Problem) -> None:
        """Queue a problem for all observers."""
        if not self._functions:
            return
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            if self._waiting.qsize() >= MOST_WAITING:
                self._missed += 1
                return
            if self._missed:
                problem, self._missed = replace(problem, missed=self._missed), 0
            self._waiting.put(problem)
            if self._thread is None:
                self._start()

    async def told(self) -> None:
        """Wait until all problems so far have been delivered, at most DELIVER_SECONDS."""
        if self._thread is None or self._pid != os.getpid():
            return
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

        self._waiting.put(wake)
        with suppress(TimeoutError):
            async with asyncio.timeout(DELIVER_SECONDS):
                await done.wait()

    def _start(self) -> None:
        thread = self._thread = threading.Thread(target=self._run, name="millstream-observers", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be started: the next problem tries again
            self._thread = None
            log.debug("the observer thread could not be started (%s); the next report tries again", error)
            return
        self._goodbye = weakref.finalize(self, _last_words, self._waiting, self._pid)  # at the end of the process

    def _run(self) -> None:
        me, waiting = threading.current_thread(), self._waiting
        while True:
            try:
                next_one = waiting.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    self._thread = None
                    if waiting.empty():
                        if self._goodbye is not None:
                            self._goodbye.detach()
                        return
                    self._thread = me
                continue
            if isinstance(next_one, Problem):
                for observer in list(self._functions):
                    self._call(observer, next_one)
            else:
                next_one()

    def _await(self, answer: Awaitable[None]) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
            weakref.finalize(self, _close, loop, self._pid)
        loop.run_until_complete(_awaited(answer))

    def _call(self, observer: Observer, problem: Problem) -> None:
        try:
            answer = observer(problem)
            if answer is not None and inspect.isawaitable(answer):
                self._await(answer)
        except BaseException as error:
            failed = self._failing[observer] = self._failing.get(observer, 0) + 1
            level = logging.ERROR if failed == 1 else logging.DEBUG
            log.log(level, "observer %s failed; it will still receive the next problem", _name(observer), exc_info=error)
        else:
            self._failing.pop(observer, None)


def _awaited(answer: Awaitable[None]) -> Coroutine[Any, Any, None]:
    async def wait() -> None:
        await answer

    return wait()


def _last_words(waiting: SimpleQueue[Problem | Told], pid: int) -> None:
    if pid == os.getpid():
        told = threading.Event()
        waiting.put(told.set)
        told.wait(DELIVER_SECONDS)


def _close(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    if pid == os.getpid() and not loop.is_running():
        loop.close()


def _name(observer: object) -> str:
    return getattr(observer, "__qualname__", None) or repr(observer)
