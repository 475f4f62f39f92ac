"""A separate process that can start the server, watches it, and stops it when it is unused.

    python -I -S watchdog.py FOLDER IDLE [SERVER ...]

The watchdog runs by its path in the data folder, without the package and site-packages. This keeps it small: 10 MB instead of
19. Standard input is the start lock, which is held until the server runs and is watched. The watchdog exits when no server is
left to watch. It names files relative to the folder, because the folder may be moved.
"""

from __future__ import annotations

import os
import socket
import sys
import time

TYPE_CHECKING = False  # Type checkers recognise the name, and typing need not be imported.
if TYPE_CHECKING:
    from millstream.backends.embedded import files, resp
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import files
    import resp

# Maximum seconds between two checks.
LOOK = 5.0
# Seconds between two attempts to connect.
RETRY = 0.01


class Watchdog:
    """Watches the folder's server until it exits, and stops it when it is unused."""

    def __init__(self, idle: float, guard: int) -> None:
        self.idle = idle
        self.interval = min(LOOK, idle / 4)
        self.guard = guard
        # An open descriptor shows whether the server runs even after the lock file was deleted.
        self.life = os.open(files.SERVER_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        self.address = ""
        self.connections: str | None = None  # Number of connections that the server has ever received.
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
        """Return a connection to the server as soon as possible. ``None`` if the server has exited or its folder is gone."""
        while True:
            try:
                self.address = files.recorded(".") or ""
                return resp.connect(self.address)
            except OSError:
                if not files.is_locked(self.life) or folder_is_gone():
                    return None
                time.sleep(RETRY)

    def look(self, connection: socket.socket) -> bool:
        """Check the server once. Return ``False`` if nothing is left to watch. Raises OSError if the server has exited."""
        if folder_is_gone():
            if files.is_locked(self.life):
                resp.signal_peer(connection, 9)  # SHUTDOWN would delete the socket, which may belong to a new server by now.
            return False
        if not os.fstat(self.guard).st_nlink:
            return False  # The lock file was deleted, so it no longer keeps a second watchdog from starting.
        if self.was_used(connection):
            self.last_use = time.monotonic()
        elif time.monotonic() - self.last_use >= self.idle:
            self.stop_server(connection)
        return True

    def was_used(self, connection: socket.socket) -> bool:
        """Return whether a client is connected, or was connected since the last check. A short probe counts too.

        This compares the server's total of connections with that of the last check, because times can be wrong. A server that
        is too busy to answer is in use.
        """
        text = resp.ask(connection, b"INFO")[-1].decode(errors="replace")
        facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        before, self.connections = self.connections, facts.get("total_connections_received")
        return self.connections != before or facts.get("connected_clients") != "1"  # One client is the watchdog.

    def stop_server(self, connection: socket.socket) -> None:
        """Stop the server, unless a last check under the start lock shows that it was used."""
        lock = files.take(files.START_LOCK)
        if lock is None:
            return
        try:
            self.last_use = time.monotonic()  # If the server does not stop, try again after another idle time.
            if not self.was_used(connection):
                resp.shut_down(connection)
        finally:
            files.drop(lock)

    def pause(self, connection: socket.socket) -> None:
        """Wait until the next check, or until the server exits and so closes the connection."""
        try:
            os.utime(self.address)  # Cleaners of /tmp delete files that were not touched for days.
        except FileNotFoundError:
            resp.shut_down(connection)  # No client can reach the server. The next process that needs one starts a new server.
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
    """Start the server, which inherits server.lock, unless a server is running."""
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
    os.close(lock)  # Closed but not unlocked: the server's copy of the descriptor holds the lock.


def main(idle: float, server: list[str]) -> None:
    # The previous watchdog may need a moment to notice that its server has exited.
    guard = files.take_within(files.WATCHDOG_LOCK, resp.ANSWER)
    if server:
        start_server(server)
    if guard is None:
        return  # Another watchdog runs, and it watches this server too.
    watchdog = Watchdog(idle, guard)
    connection = watchdog.connect()
    if os.fork():
        os._exit(0)  # The caller waits for this exit. The child process has opened all it needs, even if the folder goes away.
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    watchdog.run(connection)


if __name__ == "__main__":
    main(float(sys.argv[2]), sys.argv[3:])
