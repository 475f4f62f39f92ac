"""Servers that can never work: a worker exits immediately, with one clear line and exit code 3."""

from __future__ import annotations

import socketserver
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos.server import Engine, PrivateServer
from chaos.workers import Workers

END_SECONDS = 15.0
"""A worker that kept trying for its 30 s would not have exited by then; one that exits immediately has, on any machine."""

SERVER_CODE = 3


@dataclass(frozen=True)
class Refusal:
    """How a worker exited."""

    why: str
    code: int | None
    """None: it did not exit."""
    seconds: float
    said: list[str]


class _OldServer(socketserver.StreamRequestHandler):
    """Speaks only as much of the protocol as Redis 5 does in a new connection."""

    def handle(self) -> None:
        while header := self.rfile.readline():
            words = [self._word() for _ in range(int(header[1:]))]
            match words[0].upper():
                case b"INFO":
                    said = b"# Server\r\nredis_version:5.0.14\r\nrun_id:0\r\n"
                    self.wfile.write(b"$%d\r\n%s\r\n" % (len(said), said))
                case b"PING":
                    self.wfile.write(b"+PONG\r\n")
                case b"CLIENT" if words[1].upper() == b"ID":
                    self.wfile.write(b":1\r\n")
                case b"SELECT" | b"CLIENT":
                    self.wfile.write(b"+OK\r\n")
                case other:
                    self.wfile.write(b"-ERR unknown command `%s`\r\n" % other)

    def _word(self) -> bytes:
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:-2]


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def old_server() -> Iterator[str]:
    """Yield the URL of a listener that claims to be Redis 5."""
    with _Listener(("127.0.0.1", 0), _OldServer) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        try:
            yield f"redis://127.0.0.1:{listener.server_address[1]}/0"
        finally:
            listener.shutdown()


def run(engine: Engine) -> list[Refusal]:
    locked = PrivateServer(engine, "always", "--requirepass", "right")
    try:
        locked.start()
        with old_server() as old:
            return [
                _refusal("wrong password", locked.url.replace("unix://", "unix://:wrong@")),
                _refusal("server of version 5", old),
            ]
    finally:
        locked.clean_up()


def _refusal(why: str, url: str) -> Refusal:
    with tempfile.TemporaryDirectory(prefix="chaos-ledger-") as folder:
        workers = Workers(Path(folder))
        began = time.monotonic()
        worker = workers.launch(url)
        try:
            code: int | None = worker.wait(END_SECONDS)
        except TimeoutError:
            code = None
        finally:
            workers.clean_up()
        return Refusal(why, code, time.monotonic() - began, [line.split(" ", 2)[-1] for line in worker.log.splitlines()])
