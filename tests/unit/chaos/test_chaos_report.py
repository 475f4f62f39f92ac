"""The report of the chaos suite shows the results and names the breaches."""

from __future__ import annotations

from chaos.checker import Verdict
from chaos.report import Findings, render
from chaos.trials.trial import TrialResult


def trial(server: str, *, kept: bool = True) -> TrialResult:
    result = TrialResult("busy", "Survivors at their limit", "What is done.", server, Verdict(accepted=3, done=3))
    result.expect("it runs within 10 s", "6.0 s" if kept else "39.0 s", kept)
    return result


def test_a_failed_expectation_is_a_breach_and_is_marked() -> None:
    findings = Findings(1, trials=[trial("Valkey 9"), trial("Redis 7", kept=False)])
    assert findings.breaches == ["busy on Redis 7: it runs within 10 s: 39.0 s"]
    assert "| it runs within 10 s | 6.0 s | **broken**: 39.0 s |" in render(findings)


def test_the_report_shows_servers_side_by_side_and_accounts_for_every_job() -> None:
    text = render(Findings(1, trials=[trial("Valkey 9"), trial("Redis 7")]))
    assert text.count("## Survivors at their limit") == text.count("What is done.") == 1
    assert "| Valkey 9 | 3 | 3 | 0 | 0 | 0 |\n| Redis 7 | 3 | 3 | 0 | 0 | 0 |" in text
    assert "**6 jobs and events were accepted under faults." in text
