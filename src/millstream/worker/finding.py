"""Importing an app or a user's scaling strategy that the command line names as ``module:attribute``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, cast

from millstream.errors import UsageError

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.worker.scaling.strategies import Strategy


def find_strategy(path: str) -> Strategy:
    """Return the user's strategy at ``module:attribute``. A class is called without arguments.

    Raises UsageError if the path does not lead to a strategy.
    """
    found = find(path, "a strategy")
    strategy = found() if isinstance(found, type) else found
    if not callable(strategy):
        raise UsageError(
            f"{path!r} is not a strategy (its type is {type(strategy).__name__}): write a function that takes Metrics and "
            "returns the number of processes"
        )
    return cast("Strategy", strategy)


def find_app(path: str, *, factory: bool = False) -> Millstream:
    """Return the app at ``module:attribute`` and import the modules of its ``include``.

    With ``factory``, the path names a function that returns the app. Raises UsageError if the path does not lead to an app.
    """
    from millstream.app import Millstream

    app = find(path, "a factory" if factory else "an app")
    if factory:
        if not callable(app):
            raise UsageError(f"{path!r} is not a function (its type is {type(app).__name__}): omit --factory if it is the app")
        app = app()
        if not isinstance(app, Millstream):
            raise UsageError(f"{path}() returned a {type(app).__name__}, not a Millstream app")
    elif not isinstance(app, Millstream):
        hint = f": if {path}() returns an app, add --factory" if callable(app) else ""
        raise UsageError(f"{path!r} is not a Millstream app (its type is {type(app).__name__}){hint}")
    app.load()
    return app


def find(path: str, what: str) -> object:
    """Return the object at ``module:attribute``. ``what`` describes it in the error."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{path!r} does not name {what}: write module:attribute, for example tasks:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise UsageError(f"module {module_name!r} was not found in the working directory or on the Python path") from error
        raise
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UsageError(f"module {module_name!r} has no attribute {attribute!r}") from None
    return found
