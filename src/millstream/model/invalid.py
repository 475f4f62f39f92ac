"""What a codec raises for values that do not fit a function. Apart from ``codec``, which a supervisor need not load."""

from __future__ import annotations


class InvalidArguments(Exception):
    """Arguments that do not fit the function; says which and why."""

    def __init__(self, message: str, key: int | str | None = None) -> None:
        super().__init__(message)
        self.key = key
        """The position or keyword of the argument at fault, where it is one."""


class InvalidResult(Exception):
    """A return value that cannot be encoded, or a kept one that is not of the annotated type."""
