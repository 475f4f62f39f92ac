"""Build the scripts. Each transition is one Lua file, combined with the library parts and keys that its header names.

Header lines of a file:

- ``-- KEYS: word word …``: words of ``keys.py``, bound as upper-case locals.
- ``-- USES: part part …``: files of ``lua/lib`` to include. Their keys are bound too.
- ``-- CONSTANTS: word word …``: words of ``CONSTANTS``, numbers shared with Python, bound in the same way.
- ``-- OF A GROUP: part part …``: parts that are included only for a topic's group. The local ``in_group`` tells whether they
  are.
- ``-- FLAGS: no-writes``: the script only reads. It also runs on a server that refuses writes, and an operator may kill it.

Lines ``-- THEN USES: part part …`` and ``-- THEN OF A GROUP: part part …`` inside a file are replaced with these parts. The
parts may use the locals above them, and the server creates their functions only in calls that get that far. (Measured: this is
a third of the time of a claim that returns one job.)

``ARGV[1]`` is always the clock.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from importlib import resources

from millstream.broker.values import OVERDUE_SECONDS, REQUEST_SECONDS

PUBLISH_FLAGS = "#!lua\n"
SURVIVES_FULL_SERVER = "#!lua flags=allow-oom\n"
"""For every script except those that publish: when the server is full, workers must still be able to settle and renew, which
frees memory."""

NEVER_EXIST = frozenset({"tag", "topic", "ending", "given", "sender", "answer", "worker", "control"})
"""Words of keys that no server has: most are only the beginning of the names of other keys.

Each script that writes to several keys declares at least one of them. While a cluster moves a slot key by key, a server refuses
a call with TRYAGAIN, before it runs, if some of the call's keys are missing. Without a key that is always missing, a script
could start and then be aborted half-way, when it uses a key that has already been moved or does not exist yet.
"""

CONSTANTS = {"overdue_ms": round(1000 * OVERDUE_SECONDS), "request_ms": round(1000 * REQUEST_SECONDS)}


class Script:
    """One script: its text, its digest, and its keys in order."""

    def __init__(self, name: str, *, of_group: bool = False) -> None:
        body = _read(f"{name}.lua")
        parts = _parts(body, "USES") + (_parts(body, "OF A GROUP") if of_group else [])
        later = {
            line[0]: _read_parts(line[2].split()) if of_group or line[1] == "USES" else [] for line in _THEN.finditer(body)
        }
        texts = (body, *parts, *(text for texts in later.values() for text in texts))
        self.name = name
        self.words = _words(texts, "KEYS")
        if len(self.words) > 1 and not _header(body, "FLAGS") and NEVER_EXIST.isdisjoint(self.words):
            self.words += ("tag",)
        bound = {word: f"KEYS[{i}]" for i, word in enumerate(self.words, 1)}
        bound |= {word: str(CONSTANTS[word]) for word in _words(texts, "CONSTANTS")}
        binding = f"local {', '.join(bound).upper()} = {', '.join(bound.values())}\n" if bound else ""
        if _header(body, "OF A GROUP"):
            binding += f"local in_group = {'true' if of_group else 'false'}\n"
        body = _THEN.sub(lambda line: "\n".join(later[line[0]]), body)
        self.text = _flags(name, body) + binding + "\n".join((*parts, body))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def call(self, names: Mapping[str, str]) -> tuple[str | int, ...]:
        """Return the command that runs the script on one queue or namespace, without the arguments."""
        return ("EVALSHA", self.sha, len(self.words), *(names[word] for word in self.words))


_THEN = re.compile(r"^-- THEN (USES|OF A GROUP):(.*)$", re.MULTILINE)


def _parts(body: str, header: str) -> list[str]:
    return _read_parts(_header(body, header))


def _read_parts(names: list[str]) -> list[str]:
    return [_read(f"lib/{name}.lua") for name in names]


def _words(texts: Iterable[str], header: str) -> tuple[str, ...]:
    """Return the words of a header in all texts, without duplicates."""
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
