"""What the smaller trials have in common: an account of every job, and named expectations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.checker import Verdict


class Expectation(NamedTuple):
    """One promise, and what was found."""

    name: str
    found: str
    kept: bool


@dataclass
class TrialResult:
    """What came of a trial."""

    name: str
    """As it is called on the command line."""
    title: str
    meaning: str
    """What is done."""
    server: str = ""
    verdict: Verdict = field(default_factory=Verdict)
    expectations: list[Expectation] = field(default_factory=list[Expectation])
    seconds: float = 0.0
    logs: str = ""
    """What the workers said, if a promise was broken."""

    def expect(self, name: str, found: str, kept: bool) -> None:
        """Add an expectation."""
        self.expectations.append(Expectation(name, found, kept))

    @property
    def breaches(self) -> list[str]:
        """Broken promises, in words."""
        return self.verdict.breaches + [f"{each.name}: {each.found}" for each in self.expectations if not each.kept]
