"""A strategy as written on a command line: a name and its settings, such as ``backlog,target=5,cooldown=10``."""

from __future__ import annotations

import re
from dataclasses import fields

import msgspec

from millstream.errors import UsageError
from millstream.worker.scaling.strategies import Backlog, Strategy, Threshold

BUILT_IN: dict[str, type[Backlog] | type[Threshold]] = {"backlog": Backlog, "threshold": Threshold}

PACE = {"poll": 1.0, "hysteresis": 2.0, "cooldown": 10.0}
"""Default timing in seconds: time between two decisions, how long the strategy must want a change, and pause after a change."""

THRESHOLD_PACE = {"poll": 5.0, "hysteresis": 10.0, "cooldown": 30.0}
"""Default timing of the threshold strategy, which knows no rates and changes one process at a time."""

DEFAULT = "backlog"

_OWN = re.compile(r"[\w.]+:[\w.]+")


class Spec(msgspec.Struct, frozen=True):
    """A strategy with its settings and timing."""

    name: str
    """Name of a built-in strategy, or ``module:attribute``."""
    options: dict[str, float]
    poll: float
    hysteresis: float
    cooldown: float

    @property
    def own(self) -> str:
        """``module:attribute`` of a user's strategy, which only a child process may import. Empty for a built-in strategy."""
        return self.name if ":" in self.name else ""

    def strategy(self) -> Strategy:
        """Return the built-in strategy. Raises UsageError if its settings are invalid."""
        return BUILT_IN[self.name](**self.options)


def parse_spec(text: str) -> Spec:
    """Parse and check a strategy. Raises UsageError if it is invalid."""
    name, *settings = [part.strip() for part in text.split(",")]
    if name not in BUILT_IN and not _OWN.fullmatch(name):
        raise UsageError(f"unknown strategy {name!r}: use {', '.join(BUILT_IN)}, or your own as module:attribute")
    pace = dict(THRESHOLD_PACE if name == "threshold" else PACE)
    known = [field.name for field in fields(BUILT_IN[name])] if name in BUILT_IN else []
    options: dict[str, float] = {}
    for setting in settings:
        key, _, value = (part.strip() for part in setting.partition("="))
        if key not in (*pace, *known):
            raise UsageError(f"strategy {name!r} has no setting {key!r}: use {', '.join([*known, *pace])}")
        try:
            number = float(value)
        except ValueError:
            raise UsageError(f"{key} of strategy {name!r} must be a number, not {value!r}") from None
        if key in pace:
            if not 0 <= number < float("inf") or (key == "poll" and number < 0.1):
                raise UsageError(f"{key} must be a number of seconds{', 0.1 or more' if key == 'poll' else ''}, not {value!r}")
            pace[key] = number
        else:
            options[key] = number
    spec = Spec(name, options, **pace)
    if not spec.own:
        spec.strategy()  # raises UsageError if its settings are invalid
    return spec


def parse_processes(text: str) -> tuple[int, int]:
    """Parse a number of processes, such as ``4``, or a range, such as ``1..4``. Raises UsageError if it is invalid."""
    found = re.fullmatch(r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*)?", text)
    if found is None:
        raise UsageError(f"processes must be a number such as 4, or a range such as 1..4, not {text!r}")
    least = int(found[1])
    most = least if found[2] is None else int(found[2])
    if least < 1 or most < least:
        raise UsageError(f"processes must be 1 or more. In a range MIN..MAX, MIN must not exceed MAX; the value is {text!r}")
    return least, most
