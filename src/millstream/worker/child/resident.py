"""The memory of this process."""

from __future__ import annotations

import os
import sys


def resident_bytes() -> int:
    """Return the current resident memory in bytes. Without /proc, return the peak, or 0 if that is unknown, too."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
