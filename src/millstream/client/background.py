"""Sync versions of async methods, for callers without an event loop. They run on one background loop per process."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from millstream.aio.threaded import run_in_thread
from millstream.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

STOP_SECONDS = 2.0
"""How long a process that is exiting waits for the background loop to close its connections."""


class Background:
    """A daemon thread with an event loop, started at first use and stopped at exit. A forked child starts its own."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._inherited: list[object] = []
        self._ending = False
        """The process is exiting: the loop is closed and must not start again."""

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the background loop and return its result. An interrupt cancels it.

        Raises UsageError if the thread cannot be started.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop or self._start())
        except RuntimeError as error:
            coroutine.close()
            if self._ending:
                _rest_if_daemon()
            raise UsageError(f"a sync call needs a background thread, which cannot be started: {error}") from error
        try:
            return future.result()
        except BaseException:
            future.cancel()
            if self._ending:
                _rest_if_daemon()
            raise

    def stop(self) -> None:
        """Close the clients of the loop, then the loop. The next use starts a new loop."""
        loop, thread, stopped = self._loop, self._thread, self._stopped
        if loop is None or thread is None or stopped is None:
            return
        self._loop = None
        loop.call_soon_threadsafe(stopped.set)
        thread.join(STOP_SECONDS)

    def end(self) -> None:
        """Stop, because the process is exiting. From now on, calls from daemon threads neither return nor raise."""
        self._ending = True
        self.stop()

    def forget(self) -> None:
        """Reset in a forked child, where the thread does not exist. The loop is kept open: closing it would affect the parent's
        loop."""
        self._inherited.append(self._loop)
        self._starting = threading.Lock()
        self._thread = self._loop = self._stopped = None
        self._ending = False

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._ending:
            raise RuntimeError("the process is exiting")
        with self._starting:
            if self._loop is None:
                started, failed = threading.Event(), list[OSError]()
                target, args = self._serve, (started, failed)
                self._thread = threading.Thread(target=target, args=args, name="millstream-sync", daemon=True)
                self._thread.start()
                started.wait()
                if failed:
                    raise RuntimeError(str(failed[0])) from failed[0]
            assert self._loop is not None
            return self._loop

    def _serve(self, started: threading.Event, failed: list[OSError]) -> None:
        async def serve() -> None:
            stopped = self._stopped = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            started.set()
            await stopped.wait()

        try:
            run_in_thread(serve())
        except OSError as error:  # no file descriptor is left for an event loop
            failed.append(error)
        finally:
            started.set()


background = Background()
"""The only module global: sync calls of all apps share one loop per process."""

if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=background.forget)
atexit.register(background.end)


def _rest_if_daemon() -> None:
    """In a daemon thread, block until the process exits. An error raised there would print a useless traceback."""
    if threading.current_thread().daemon:
        threading.Event().wait()


def run_sync(name: str, verb: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run ``verb(*args, **kwargs)`` on the background loop. Raises UsageError in a thread with a running event loop, which the
    call would block."""
    if _in_a_loop():
        raise UsageError(f"{name}_sync() would block the running event loop: use `await ….{name}(…)` here")
    return background.run(verb(*args, **kwargs))


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def sync_version(verb: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], R]:
    """Return the sync version of an async method: ``result_sync = sync_version(result)``."""
    name = verb.__name__

    @functools.wraps(verb)
    def sync(subject: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run_sync(name, verb, subject, *args, **kwargs)

    sync.__name__ = f"{name}_sync"
    sync.__qualname__ = f"{verb.__qualname__}_sync"
    sync.__doc__ = f"``{name}`` for code without an event loop. Raises UsageError in a thread with a running event loop."
    return sync
