"""Logging of a worker that was started from the command line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager


def configure_logging(level: str) -> None:
    """Log to stderr, at this level and above."""
    with app_may_configure_logging(level):
        pass


@contextmanager
def app_may_configure_logging(level: str) -> Generator[None]:
    """Log to stderr, at this level and above, unless code that is imported inside the block configures logging itself.

    The root logger gets the handler at the end of the block, because ``logging.basicConfig`` does nothing if the root logger
    already has one. Until then the handler is Python's handler of last resort.
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
