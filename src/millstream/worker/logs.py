"""What a worker started from the command line prints."""

from __future__ import annotations

import logging
import sys


def configure_logging(level: str) -> None:
    """To stderr, from this level on, unless the app's own import configured logging before."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)-8s %(message)s", stream=sys.stderr)
