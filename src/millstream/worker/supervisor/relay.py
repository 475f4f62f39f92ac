"""The relay: what goes wrong in a supervisor, which imports no user code, is told to the observers of a child's app."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from typing import Final

import msgspec

from millstream import errors
from millstream.reporting.problem import Problem
from millstream.worker import messages

TEXT_LIMIT = 2_000
"""Characters of an error that are passed on: a word is one line, and a line may not be long."""

MOST_KEPT = 100
"""Problems that wait for a child to tell; what comes beyond them is counted and not told."""

_KINDS: Final = (
    errors.BrokerError,
    errors.BrokerRefused,
    errors.BrokerUnavailable,
    errors.LeaseLost,
    errors.WorkerCrashed,
)


class Relay:
    """One child that serves is told; while none does, the next one. What a child had not told when it died is logged only."""

    def __init__(self) -> None:
        self.listening = False
        """Whether the app has observers, as a child has said."""
        self._children: dict[object, asyncio.StreamWriter] = {}
        self._kept: deque[messages.Trouble] = deque()
        self._missed = 0

    def admit(self, child: object, writer: asyncio.StreamWriter) -> None:
        """A child serves: it is told what was kept."""
        self.listening = True
        self._children[child] = writer
        while self._kept:
            messages.say(writer, self._kept.popleft())

    def dismiss(self, child: object) -> None:
        """It can be told nothing more."""
        self._children.pop(child, None)

    def tell(self, problem: Problem) -> None:
        word = _as_word(problem)
        if self._missed:
            word, self._missed = msgspec.structs.replace(word, missed=self._missed), 0
        for writer in self._children.values():
            messages.say(writer, word)
            return
        if len(self._kept) < MOST_KEPT:
            self._kept.append(word)
        else:
            self._missed = word.missed + 1


def _as_word(problem: Problem) -> messages.Trouble:
    error = problem.error
    return messages.Trouble(
        problem.during,
        type(error).__name__,
        str(error)[:TEXT_LIMIT],
        problem.at.timestamp(),
        problem.address,
        problem.crash,
        problem.streak,
        problem.missed,
    )


def as_problem(word: messages.Trouble) -> Problem:
    """In the child. The error is known by its name and text alone."""
    kind = next((kind for kind in _KINDS if kind.__name__ == word.error_type), None)
    error = errors.MillstreamError(f"{word.error_type}: {word.message}") if kind is None else kind(word.message)
    return Problem(
        during=word.during,
        error=error,
        at=datetime.fromtimestamp(word.at, UTC),
        address=word.address,
        crash=word.crash,
        streak=word.streak,
        missed=word.missed,
    )
