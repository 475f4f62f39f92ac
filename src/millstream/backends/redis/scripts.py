"""The scripts: one Lua file per transition, put together with the library parts and keys that its header names.

A file starts with ``-- KEYS: word word …`` (words of ``keys.py``, bound as upper-case locals) and may have
``-- USES: part part …`` (files of ``lua/lib``, whose keys are bound too). A file or part that shares a number with Python has
``-- CONSTANTS: word word …`` (words of ``CONSTANTS``, bound in the same way). ``ARGV[1]`` is always the clock.
A script that does more for a topic's group than for a queue has ``-- OF A GROUP: part part …``: these parts are there when the
local ``in_group`` is true.
Lines ``-- THEN USES: part part …`` and ``-- THEN OF A GROUP: part part …`` in its middle stand for these parts: they may use
the locals above them, and the server makes their functions only in calls that come that far. (Measured: that is a third of
the time of a claim that brings one job.)
``-- FLAGS: no-writes`` is for one that only reads: it also runs on a server that refuses writes, and an operator may kill it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from importlib import resources

from millstream.broker.values import OVERDUE_SECONDS, REQUEST_SECONDS

PUBLISH_FLAGS = "#!lua\n"
SURVIVES_FULL_SERVER = "#!lua flags=allow-oom\n"
"""On every transition but publish: a full server must be able to settle, renew and so empty itself."""

CONSTANTS = {"overdue_ms": round(1000 * OVERDUE_SECONDS), "request_ms": round(1000 * REQUEST_SECONDS)}


class Script:
    """One transition: its text, its digest, and which keys it takes in which order."""

    def __init__(self, name: str, *, of_group: bool = False) -> None:
        body = _read(f"{name}.lua")
        parts = _parts(body, "USES") + (_parts(body, "OF A GROUP") if of_group else [])
        later = {
            line[0]: _read_parts(line[2].split()) if of_group or line[1] == "USES" else [] for line in _THEN.finditer(body)
        }
        texts = (body, *parts, *(text for texts in later.values() for text in texts))
        self.name = name
        self.words = _words(texts, "KEYS")
        bound = {word: f"KEYS[{i}]" for i, word in enumerate(self.words, 1)}
        bound |= {word: str(CONSTANTS[word]) for word in _words(texts, "CONSTANTS")}
        binding = f"local {', '.join(bound).upper()} = {', '.join(bound.values())}\n" if bound else ""
        if _header(body, "OF A GROUP"):
            binding += f"local in_group = {'true' if of_group else 'false'}\n"
        body = _THEN.sub(lambda line: "\n".join(later[line[0]]), body)
        self.text = _flags(name, body) + binding + "\n".join((*parts, body))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def call(self, names: Mapping[str, str]) -> tuple[str | int, ...]:
        """The command that runs it on one queue or namespace, up to its arguments."""
        return ("EVALSHA", self.sha, len(self.words), *(names[word] for word in self.words))


_THEN = re.compile(r"^-- THEN (USES|OF A GROUP):(.*)$", re.MULTILINE)


def _parts(body: str, header: str) -> list[str]:
    return _read_parts(_header(body, header))


def _read_parts(names: list[str]) -> list[str]:
    return [_read(f"lib/{name}.lua") for name in names]


def _words(texts: Iterable[str], header: str) -> tuple[str, ...]:
    """The words of a header in all of these texts, each once."""
    return tuple(dict.fromkeys(word for text in texts for word in _header(text, header)))


def _flags(name: str, body: str) -> str:
    if _header(body, "FLAGS"):
        return f"#!lua flags=allow-oom,{','.join(_header(body, 'FLAGS'))}\n"
    return PUBLISH_FLAGS if name.startswith(("publish", "emit")) else SURVIVES_FULL_SERVER


def _read(path: str) -> str:
    return resources.files("millstream.backends.redis").joinpath("lua", path).read_text(encoding="utf-8")


def _header(text: str, name: str) -> list[str]:
    prefix = f"-- {name}:"
    for line in text.splitlines():
        if line.startswith(prefix):
            return line.removeprefix(prefix).split()
    return []
