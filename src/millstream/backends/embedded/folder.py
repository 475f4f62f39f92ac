"""Locate the data folder and the server's socket, and keep other users out of them."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from millstream.backends.embedded.files import LOG
from millstream.config import project_root
from millstream.errors import UsageError

# Maximum bytes of a socket path. With the closing zero the limit is 104 on macOS and the BSDs, and 108 on Linux.
LONGEST_SOCKET = 103

WAY_OUT = "Set MILLSTREAM_HOME to another folder, or set MILLSTREAM_URL to use a server of your own."


def data_folder(directory: str | Path | None = None) -> Path:
    """Return the data folder: the argument, ``$MILLSTREAM_HOME``, or ``.millstream``.

    A relative path starts at the project's root, not at the working directory. So a web server and a worker use the same folder
    wherever they are started.
    """
    chosen = Path(directory or os.environ.get("MILLSTREAM_HOME") or ".millstream").expanduser()
    return Path(os.path.realpath(chosen if chosen.is_absolute() else project_root() / chosen))


def prepare(folder: Path) -> None:
    """Create the data folder if it is missing. Raises `UsageError` if it belongs to another user."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _make(folder)
    owner = folder.stat().st_uid
    if owner not in (os.geteuid(), 0):
        # Root could use the folder, but would leave files that its owner cannot read.
        raise UsageError(f"{folder} belongs to user {owner}, but this process runs as user {os.geteuid()}. {WAY_OUT}")
    if not os.listdir(folder):
        # Only in an empty folder: in a folder with a project, this file would hide the project from git.
        (folder / ".gitignore").write_text("*\n")


def socket_path(folder: Path) -> str:
    """Return the socket path of this folder's server: always the same path, short, and in a private folder of this user.

    The name includes the device and inode of the data folder. If the folder is moved away, a new folder at the old path does
    not take over its socket.
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
    raise UsageError(
        f"no folder for the embedded server's socket: its path may have at most {LONGEST_SOCKET} bytes. Tried "
        f"{', '.join(map(str, candidates))}. Set XDG_RUNTIME_DIR or TMPDIR to a folder with a shorter path"
    )


def log_tail(folder: Path) -> str:
    """Return the last lines of the server's log, as the end of an error message. Empty if there is no log."""
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
    # Under sudo, XDG_RUNTIME_DIR may still name the folder of the user who called sudo.
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
            f"{folder} belongs to user {found.st_uid} or is not a folder, so a socket in it would not be private. "
            "Set XDG_RUNTIME_DIR or TMPDIR to a folder of your own"
        )
    if found.st_mode & 0o077:
        folder.chmod(0o700)
