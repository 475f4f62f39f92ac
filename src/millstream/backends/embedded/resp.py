"""A minimal client: just enough of the protocol to find, watch and stop a server.

The watchdog imports this file without the package, so it may use only a few modules of the standard library.
"""

from __future__ import annotations

import os
import socket
import sys

TYPE_CHECKING = False  # Type checkers recognise the name, and typing need not be imported.
if TYPE_CHECKING:
    from typing import BinaryIO

# Seconds that one command may take.
ANSWER = 5.0
# Seconds that a server may take to write its data to disk and exit.
ENDING = 30.0


def connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ANSWER)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def ask(connection: socket.socket, command: bytes) -> list[bytes]:
    """Send a command and return the reply: a line with its leading sign, a string, or the parts of an array."""
    _send(connection, command)
    with connection.makefile("rb") as answers:
        return _read(answers)


def shut_down(connection: socket.socket) -> str:
    """Send SHUTDOWN, which writes all data to disk. Return the server's error if it refuses, or an empty string."""
    connection.settimeout(ENDING)
    _send(connection, b"SHUTDOWN")
    try:
        return connection.recv(1024).decode(errors="replace").strip()
    except ConnectionResetError:
        return ""


def signal_peer(connection: socket.socket, signal: int) -> bool:
    """Send a signal to the process at the other end of a connection. Return ``False`` if the kernel does not report its pid.

    The pid is not reported if the process is in another container. Values below 2 are never used: 0 and -1 would signal groups
    of processes.
    """
    if sys.platform == "darwin":
        answer = connection.getsockopt(0, 2, 4)  # SOL_LOCAL, LOCAL_PEERPID
    else:
        answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # pid, uid, gid
    pid = int.from_bytes(answer[:4], sys.byteorder, signed=True)
    if pid < 2:
        return False
    os.kill(pid, signal)
    return True


def _send(connection: socket.socket, command: bytes) -> None:
    try:
        connection.sendall(command + b"\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass  # A server with too many clients sends an error and closes before it reads. The error can still be read.


def _read(answers: BinaryIO) -> list[bytes]:
    line = answers.readline()
    if line[:1] == b"*":
        return [part for _ in range(int(line[1:])) for part in _read(answers)]
    text = answers.read(int(line[1:]) + 2) if line[:1] == b"$" else line
    if not text.endswith(b"\r\n"):
        raise ConnectionResetError("the server closed the connection")
    return [text[:-2]]
