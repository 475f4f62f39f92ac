"""How much memory this process takes."""

from __future__ import annotations

import os
import sys


def resident_bytes() -> int:
    """What is resident now; where the system does not say that, the most that ever was; 0 if it says nothing."""
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
