"""The few questions asked of a server: as much of its protocol as finding, watching and stopping it takes.

The watchdog imports this file apart from the package: it may need nothing but a little of the standard library.
"""

from __future__ import annotations

import os
import socket
import sys

TYPE_CHECKING = False  # as checkers understand it, without importing typing
if TYPE_CHECKING:
    from typing import BinaryIO

# Seconds one question may take.
ANSWER = 5.0
# Seconds a server may take to bring everything to disk and end.
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
    """The server's answer: a line with its leading sign, a text, or the parts of an array."""
    _send(connection, command)
    with connection.makefile("rb") as answers:
        return _read(answers)


def shut_down(connection: socket.socket) -> str:
    """Send SHUTDOWN, which brings everything to disk; return what the server says against it, or nothing."""
    connection.settimeout(ENDING)
    _send(connection, b"SHUTDOWN")
    try:
        return connection.recv(1024).decode(errors="replace").strip()
    except ConnectionResetError:
        return ""


def signal_peer(connection: socket.socket, signal: int) -> bool:
    """Signal the process at the other end of a connection; False if the kernel does not name one.

    It does not if the process is in another container; and 0 and -1 would be taken for whole groups of processes.
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
        pass  # a server that is full says so and closes before it reads: what it said is still to be read


def _read(answers: BinaryIO) -> list[bytes]:
    line = answers.readline()
    if line[:1] == b"*":
        return [part for _ in range(int(line[1:])) for part in _read(answers)]
    text = answers.read(int(line[1:]) + 2) if line[:1] == b"$" else line
    if not text.endswith(b"\r\n"):
        raise ConnectionResetError("the server closed the connection")
    return [text[:-2]]
