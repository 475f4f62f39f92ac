"""Exceptions of codecs. They are outside ``codec``, so that a supervisor need not load that package."""

from __future__ import annotations


class InvalidArguments(Exception):
    """The arguments do not match the function. The message says which, and why."""

    def __init__(self, message: str, key: int | str | None = None) -> None:
        super().__init__(message)
        self.key = key
        """The position or keyword of the wrong argument, or ``None`` if no single argument is wrong."""


class InvalidResult(Exception):
    """A return value cannot be encoded, or a stored one does not match the return annotation."""
