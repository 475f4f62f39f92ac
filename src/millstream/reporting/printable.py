"""Escapes untrusted text for terminals and logs. No I/O."""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, which can move a terminal's cursor
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks, which change how text reads
    "\xad\u180e\u200b-\u200d\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible
    "\ud800-\udfff]"  # surrogates, which cannot be printed
)
"""Characters that are replaced by their code points. Newlines and tabs are not included."""


def line(text: str) -> str:
    """Return the text escaped, on one line."""
    return block(text).replace("\n", "\\n").replace("\t", " ")


def block(text: str) -> str:
    """Return the text escaped, with its line breaks."""
    return _UNSEEN.sub(lambda found: _number(ord(found[0])), text)


def _number(point: int) -> str:
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
