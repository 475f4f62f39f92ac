"""Forks: after ``gunicorn --preload`` used an app and forked, parent and children can each keep using it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections import Counter
from pathlib import Path
from typing import Any

from tests.system.harness import Ledger, Workers, eventually, until_done


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def get(path: str, key: str) -> dict[str, Any]:
    connection = UnixConnection(path)
    try:
        connection.request("GET", f"/{key}")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def test_workers_of_a_preloaded_site_enqueue_after_their_parent_did(
    ledger: Ledger, workers: Workers, server: Any, bin_folder: Path
) -> None:
    worker = workers.start()
    address = str(Path(server.path).with_name("http"))
    options = ["--preload", "--workers", "2", "--bind", f"unix:{address}", "--log-level", "warning", "--no-control-socket"]
    site = workers.run([str(bin_folder / "python"), "-m", "gunicorn", *options, "web:application"], workers.environment())
    eventually(lambda: listens(address), "gunicorn to listen")
    answers: list[dict[str, Any]] = []

    def both_answered() -> bool:
        answers.append(get(address, f"request-{len(answers)}"))
        return len({answer["pid"] for answer in answers}) == 2 and len(answers) >= 20

    eventually(both_answered, "both workers of the site to answer")
    assert {answer["parent"] for answer in answers} == {site.pid}
    assert [answer["result"] for answer in answers] == [f"request-{i}" for i in range(len(answers))]
    ids = [answers[0]["at_import"], *(answer["id"] for answer in answers)]
    assert len(set(ids)) == len(ids)
    until_done(len(ids))
    assert ledger.runs() == Counter({"import": 1} | {f"request-{i}": 1 for i in range(len(answers))})
    assert {line.job for line in ledger.starts()} == set(ids)
    site.signal(signal.SIGTERM)
    assert site.wait() == 0
    assert site.log == ""
    assert worker.code is None
