"""The error tree in the docstring matches the code."""

from __future__ import annotations

import re

from millstream import errors
from millstream.errors import MillstreamError


def all_below(kind: type[MillstreamError]) -> set[type[MillstreamError]]:
    return {kind}.union(*(all_below(child) for child in kind.__subclasses__()))


def test_every_public_error_is_exported_and_drawn_in_the_tree() -> None:
    ours = {kind.__name__ for kind in all_below(MillstreamError) if kind.__module__ == errors.__name__}
    drawn = set(re.findall(r"^    (?:[│├└─ ]*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE))
    assert ours == drawn == set(errors.__all__)
