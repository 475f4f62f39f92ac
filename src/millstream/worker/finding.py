"""Finding what a command line names: an app, or a strategy of its own, as ``module:attribute``."""

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
    """The app's own strategy, at ``module:attribute``; a class is called without arguments. UsageError says what is wrong."""
    found = find(path, "a strategy")
    strategy = found() if isinstance(found, type) else found
    if not callable(strategy):
        raise UsageError(f"{path!r} is a {type(strategy).__name__}, not a strategy: a function of Metrics")
    return cast("Strategy", strategy)


def find_app(path: str, *, factory: bool = False) -> Millstream:
    """The app at ``module:attribute``, its ``include`` imported too; with ``factory``, what the function there returns.

    UsageError says what is wrong.
    """
    from millstream.app import Millstream

    app = find(path, "a factory" if factory else "an app")
    if factory:
        if not callable(app):
            raise UsageError(f"{path!r} is a {type(app).__name__}, not a function that returns an app: leave out --factory")
        app = app()
        if not isinstance(app, Millstream):
            raise UsageError(f"{path}() returned a {type(app).__name__}, not a Millstream app")
    elif not isinstance(app, Millstream):
        hint = f": if {path}() returns one, add --factory" if callable(app) else ""
        raise UsageError(f"{path!r} is a {type(app).__name__}, not a Millstream app{hint}")
    app.load()
    return app


def find(path: str, what: str) -> object:
    """What is at ``module:attribute``."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{path!r} does not name {what}: write module:attribute, for example tasks:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise UsageError(f"there is no module {module_name!r} here or on the Python path") from error
        raise
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UsageError(f"module {module_name!r} has no {attribute!r}") from None
    return found
