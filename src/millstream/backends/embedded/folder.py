"""Where the data folder and the server's socket are, and that nobody else can reach them."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from millstream.backends.embedded.files import LOG
from millstream.config import project_root
from millstream.errors import UsageError

# Bytes of a socket's path: 104 with the closing zero on macOS and the BSDs, 108 on Linux.
LONGEST_SOCKET = 103

WAY_OUT = "Set MILLSTREAM_HOME to another folder, or MILLSTREAM_URL to a server."


def data_folder(directory: str | Path | None = None) -> Path:
    """Where the data lives: the argument, ``$MILLSTREAM_HOME``, or ``.millstream``; relative to the project's root.

    Relative to the root and not to the working directory, so that a web server and a worker agree wherever they start.
    """
    chosen = Path(directory or os.environ.get("MILLSTREAM_HOME") or ".millstream").expanduser()
    return Path(os.path.realpath(chosen if chosen.is_absolute() else project_root() / chosen))


def prepare(folder: Path) -> None:
    """Make the data folder if it is missing; `UsageError` if it is someone else's."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _make(folder)
    owner = folder.stat().st_uid
    if owner not in (os.geteuid(), 0):
        # As root we could, and would leave files its owner cannot read.
        raise UsageError(f"{folder} belongs to user {owner} and this is user {os.geteuid()}; {WAY_OUT}")
    if not os.listdir(folder):
        # Only in a folder of our own: in one that holds a project, this line would hide the project.
        (folder / ".gitignore").write_text("*\n")


def socket_path(folder: Path) -> str:
    """Where this folder's server will listen: the same path every time, short, and in a folder of this user's own.

    The folder's identity is in the name: a new folder at an old path must not take the socket of the one moved away.
    """
    identity = folder.stat()
    key = os.fsencode(folder) + b"\0%d:%d" % (identity.st_dev, identity.st_ino)
    name = f"{hashlib.sha256(key).hexdigest()[:16]}.sock"
    mine = f"millstream-{os.geteuid()}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    candidates = [Path(runtime, "millstream")] if _is_own_runtime(runtime) else []
    candidates += [Path(tempfile.gettempdir(), mine), Path("/tmp", mine)]
    for candidate in candidates:
        path = candidate / name
        if len(os.fsencode(path)) <= LONGEST_SOCKET:
            _make_private(candidate)
            return str(path)
    raise UsageError(f"no folder is short enough for a socket of {LONGEST_SOCKET} bytes; tried {candidates}")


def log_tail(folder: Path) -> str:
    """The last lines the server logged, to close an error message with; empty if there are none."""
    try:
        lines = (folder / LOG).read_text(errors="replace").splitlines()[-12:]
    except OSError:
        return ""
    return f"\nThe last lines of {folder / LOG}:\n  " + "\n  ".join(lines)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass


def _is_own_runtime(folder: str) -> bool:
    # Under sudo the variable may still name the caller's folder.
    try:
        found = os.stat(folder)
    except OSError:
        return False
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return own and os.path.isabs(folder) and os.access(folder, os.W_OK | os.X_OK)


def _make_private(folder: Path) -> None:
    _make(folder)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UsageError(
            f"{folder} belongs to user {found.st_uid} or is no folder, so a socket in it would not be private; "
            "set XDG_RUNTIME_DIR or TMPDIR to a folder of your own"
        )
    if found.st_mode & 0o077:
        folder.chmod(0o700)
