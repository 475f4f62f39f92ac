"""The common form of the smaller trials: an account of every job, and named expectations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.checker import Verdict


class Expectation(NamedTuple):
    """One promise, and the measurement."""

    name: str
    found: str
    kept: bool


@dataclass
class TrialResult:
    """The result of a trial."""

    name: str
    """Its name on the command line."""
    title: str
    meaning: str
    """What the trial does."""
    server: str = ""
    verdict: Verdict = field(default_factory=Verdict)
    expectations: list[Expectation] = field(default_factory=list[Expectation])
    seconds: float = 0.0
    logs: str = ""
    """The workers' logs, if a promise was broken."""

    def expect(self, name: str, found: str, kept: bool) -> None:
        """Add an expectation."""
        self.expectations.append(Expectation(name, found, kept))

    @property
    def breaches(self) -> list[str]:
        """Broken promises as text."""
        return self.verdict.breaches + [f"{each.name}: {each.found}" for each in self.expectations if not each.kept]
