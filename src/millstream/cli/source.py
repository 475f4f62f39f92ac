"""Importing the user's app, for the few commands that need it."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

from millstream.config import discover_app
from millstream.errors import MillstreamError, UsageError

if TYPE_CHECKING:
    from millstream.app import Millstream


def load_app(name: str | None, *, factory: bool = False) -> Millstream:
    """Import the app given by name or in the settings. Raises UsageError, in one line, if it cannot be loaded."""
    from millstream.worker.finding import find_app

    found = discover_app(name)
    try:
        return find_app(found, factory=factory)
    except MillstreamError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        at = f"{os.path.relpath(place.filename)}, line {place.lineno}"
        raise UsageError(f"{found} cannot be loaded: {type(error).__name__}: {error} ({at})") from error
