"""Signals, for commands that have to clear up."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signals_as_interrupts() -> Generator[list[int]]:
    """SIGTERM and a hang-up end a command as Ctrl-C does, so that it clears up; which it was is told."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.raise_signal(signal.SIGINT)

    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            before[number] = signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
