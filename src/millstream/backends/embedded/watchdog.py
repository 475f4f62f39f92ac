"""A process of its own that starts the server if asked to, watches it, and stops it when nobody uses it.

    python -I -S watchdog.py FOLDER IDLE [SERVER ...]

Run by its path from within the data folder, apart from the package and from site-packages, so that it stays small: 10 MB
instead of 19. Standard input is the start lock, held until the server runs and is watched. Ends when there is no server to
watch. Names files relative to the folder, which may be moved.
"""

from __future__ import annotations

import os
import socket
import sys
import time

TYPE_CHECKING = False  # as checkers understand it, without importing typing
if TYPE_CHECKING:
    from millstream.backends.embedded import files, resp
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import files
    import resp

# Seconds between two looks, at most.
LOOK = 5.0
# Seconds between two attempts to connect.
RETRY = 0.01


class Watchdog:
    """Looks after the folder's server until there is none, or nobody uses it."""

    def __init__(self, idle: float, guard: int) -> None:
        self.idle = idle
        self.interval = min(LOOK, idle / 4)
        self.guard = guard
        self.life = os.open(files.SERVER_LOCK, os.O_RDWR | os.O_CREAT, 0o600)  # tells of the server if the file is deleted
        self.address = ""
        self.connections: str | None = None  # how many the server has ever seen
        self.last_use = time.monotonic()

    def run(self, connection: socket.socket | None) -> None:
        while connection is not None:
            try:
                while self.look(connection):
                    self.pause(connection)
                return
            except OSError:
                connection.close()
                time.sleep(RETRY)
                connection = self.connect()

    def connect(self) -> socket.socket | None:
        """A connection to the server as soon as there can be one; None if it has ended, or its folder is gone."""
        while True:
            try:
                self.address = files.recorded(".") or ""
                return resp.connect(self.address)
            except OSError:
                if not files.is_locked(self.life) or folder_is_gone():
                    return None
                time.sleep(RETRY)

    def look(self, connection: socket.socket) -> bool:
        """Look after the server once; False if there is nothing left to watch. Its end is heard from the connection."""
        if folder_is_gone():
            if files.is_locked(self.life):
                resp.signal_peer(connection, 9)  # SHUTDOWN would delete the socket, a new server's by now perhaps
            return False
        if not os.fstat(self.guard).st_nlink:
            return False  # a lock that was deleted keeps no other watchdog away
        if self.was_used(connection):
            self.last_use = time.monotonic()
        elif time.monotonic() - self.last_use >= self.idle:
            self.stop_server(connection)
        return True

    def was_used(self, connection: socket.socket) -> bool:
        """Whether someone is connected, or has been since the last look, if only to ask whether the server is ready.

        The server's count is compared, not clocks, which can be wrong. A server too busy to say is used.
        """
        text = resp.ask(connection, b"INFO")[-1].decode(errors="replace")
        facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        before, self.connections = self.connections, facts.get("total_connections_received")
        return self.connections != before or facts.get("connected_clients") != "1"  # one is the watchdog

    def stop_server(self, connection: socket.socket) -> None:
        """Stop the server, unless a last look under the start lock shows that someone came."""
        lock = files.take(files.START_LOCK)
        if lock is None:
            return
        try:
            self.last_use = time.monotonic()  # if it does not stop, the next attempt is an idle time away
            if not self.was_used(connection):
                resp.shut_down(connection)
        finally:
            files.drop(lock)

    def pause(self, connection: socket.socket) -> None:
        """Wait for the next look; the server's death, the one thing to be heard when nothing was asked, ends it."""
        try:
            os.utime(self.address)  # cleaners of /tmp delete what has not been touched for days
        except FileNotFoundError:
            resp.shut_down(connection)  # nobody else can reach it: the next to ask starts one that can be
        except OSError:
            pass
        connection.settimeout(self.interval)
        try:
            connection.recv(1)
        except TimeoutError:
            pass
        connection.settimeout(resp.ANSWER)


def folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def start_server(command: list[str]) -> None:
    """Start the server with server.lock in its hands, unless there is a server."""
    lock = files.take_within(files.SERVER_LOCK, 1.0)
    if lock is None:
        return
    streams = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, files.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    )
    os.set_inheritable(lock, True)
    try:
        os.posix_spawn(command[0], command, os.environ, file_actions=streams, setsigmask=[])
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
    os.close(lock)  # closed, not unlocked: the server's copy holds it


def main(idle: float, server: list[str]) -> None:
    # A watchdog whose server has just died needs a moment to notice.
    guard = files.take_within(files.WATCHDOG_LOCK, resp.ANSWER)
    if server:
        start_server(server)
    if guard is None:
        return  # there is a watchdog, and it goes on with this server
    watchdog = Watchdog(idle, guard)
    connection = watchdog.connect()
    if os.fork():
        os._exit(0)  # the caller waits for this: the child has all it needs, whatever happens to the folder
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    watchdog.run(connection)


if __name__ == "__main__":
    main(float(sys.argv[2]), sys.argv[3:])
