"""What a worker started from the command line prints."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager


def configure_logging(level: str) -> None:
    """Log to stderr, from this level on."""
    with app_may_configure_logging(level):
        pass


@contextmanager
def app_may_configure_logging(level: str) -> Generator[None]:
    """Log to stderr, from this level on, unless what is imported inside configures logging itself.

    The root logger gets its handler at the end: ``logging.basicConfig`` does nothing where there is one. Until then the handler
    is the one that Python uses for want of others.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(message)s"))
    root, default = logging.getLogger(), logging.lastResort
    root.setLevel(level.upper())
    logging.lastResort = handler
    try:
        yield
    finally:
        logging.lastResort = default
        if not root.handlers:
            root.addHandler(handler)
