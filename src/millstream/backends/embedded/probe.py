"""What answers at an address, and whether it is the server of a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from millstream.backends.embedded.files import SERVER_LOCK, is_held
from millstream.backends.embedded.resp import ask, connect

State = Literal["ready", "loading", "busy", "silent", "absent"]

# Bytes of a working directory from which on Redis and Valkey cannot name it (their buffer's size).
UNNAMEABLE = 1024


def probe(address: str, folder: Path) -> State:
    """How this folder's server is: ready, loading its data, busy (full of clients, or with a script), silent or absent.

    One that cannot write to its disk is ready: it answers, and tells whoever writes what is wrong. Absent also if another
    folder's server answers. A busy one cannot say whose it is, so it must hold this folder's lock.
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
    if not answer:  # it cannot say
        return len(path) >= UNNAMEABLE and is_held(folder / SERVER_LOCK)
    try:
        return answer == path or os.path.samefile(answer, path)
    except OSError:
        return False
