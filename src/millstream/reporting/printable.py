"""Text from anywhere, made harmless for terminals and logs. No I/O."""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters: they move a terminal's cursor, or worse
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks: they make text read as another text
    "\xad\u180e\u200b-\u200d\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible
    "\ud800-\udfff]"  # half characters: they cannot be printed
)
"""Characters that are shown as their numbers. Newlines and tabs are not among them."""


def line(text: str) -> str:
    """The text as one harmless line."""
    return block(text).replace("\n", "\\n").replace("\t", " ")


def block(text: str) -> str:
    """The text, harmless to a terminal; it keeps its lines."""
    return _UNSEEN.sub(lambda found: _number(ord(found[0])), text)


def _number(point: int) -> str:
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
