"""The relay: passes the supervisor's problems to the app's observers in a child, because a supervisor imports no user code."""

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
"""Maximum characters of an error's text that are passed on, because a message is one line of limited length."""

MOST_KEPT = 100
"""Maximum number of problems that wait for a child. Further problems are only counted."""

_KINDS: Final = (
    errors.BrokerError,
    errors.BrokerRefused,
    errors.BrokerUnavailable,
    errors.LeaseLost,
    errors.WorkerCrashed,
)


class Relay:
    """Sends each problem to one serving child, or to the next child that serves. Problems that a child had not passed on when
    it died are only in the log."""

    def __init__(self) -> None:
        self.listening = False
        """Whether the app has observers, as reported by a child."""
        self._children: dict[object, asyncio.StreamWriter] = {}
        self._kept: deque[messages.Trouble] = deque()
        self._missed = 0

    def admit(self, child: object, writer: asyncio.StreamWriter) -> None:
        """Add a serving child with observers, and send it the waiting problems."""
        self.listening = True
        self._children[child] = writer
        while self._kept:
            messages.say(writer, self._kept.popleft())

    def dismiss(self, child: object) -> None:
        """Remove a child that cannot receive problems any more."""
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
    """Rebuild a problem in the child. Only the name and the text of its error are known."""
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
