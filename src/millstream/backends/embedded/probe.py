"""Check what answers at an address, and whether it is the server of a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from millstream.backends.embedded.files import SERVER_LOCK, is_held
from millstream.backends.embedded.resp import ask, connect

State = Literal["ready", "loading", "busy", "silent", "absent"]

# Redis and Valkey cannot report a working directory with this many bytes or more (the size of their buffer).
UNNAMEABLE = 1024


def probe(address: str, folder: Path) -> State:
    """Return the state of this folder's server.

    - ready: it answers. This includes a server that cannot write to its disk, since it reports that to clients that write.
    - loading: it is still loading its data.
    - busy: it has too many clients, or a script runs. A busy server cannot report its folder, so it must hold the folder's
      lock.
    - silent: it accepts a connection but does not answer as expected.
    - absent: nothing listens there, or the server of another folder answers.
    """
    try:
        with connect(address) as connection:
            ping = ask(connection, b"PING")[0]
            if ping.startswith((b"-BUSY", b"-ERR max number of clients")):
                return _if_held("busy", folder)
            if ping != b"+PONG" and not ping.startswith((b"-LOADING", b"-MISCONF")):
                return "silent"
            home = ask(connection, b"CONFIG GET dir")[-1]
    except (FileNotFoundError, ConnectionRefusedError):
        return "absent"
    except (OSError, ValueError):
        return "silent"
    if home.startswith(b"-"):
        return _if_held("busy", folder)
    if not _is_home(home, folder):
        return "absent"
    return "loading" if ping.startswith(b"-LOADING") else "ready"


def _if_held(state: State, folder: Path) -> State:
    return state if is_held(folder / SERVER_LOCK) else "absent"


def _is_home(answer: bytes, folder: Path) -> bool:
    path = os.fsencode(folder)
    if not answer:  # The path is too long for the server to report.
        return len(path) >= UNNAMEABLE and is_held(folder / SERVER_LOCK)
    try:
        return answer == path or os.path.samefile(answer, path)
    except OSError:
        return False
