"""``millstream bench`` with real workers: it accounts for every job and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.system.harness import PATIENCE, Server, eventually, running_server
from tests.system.test_cli import MILLSTREAM, environment, millstream

ROWS = [
    "drain",
    "results",
    "io",
    "sync",
    "bulk",
    "concurrent",
    "sequential",
    "latency",
    "bytes",
    "rss",
    "events",
    "batches",
    "publish",
]


def test_bench_measures_every_row_on_a_server_that_stops_afterwards(tmp_path: Path) -> None:
    words = [*MILLSTREAM, "bench", "--seconds", "0.1", "--json"]
    # not tmp_path: the path of a socket is limited to about 100 characters
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        done = subprocess.run(
            words,
            env=environment("redis://no.such.host", TMPDIR=folder, XDG_RUNTIME_DIR=folder),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE,
        )
        assert [path for path in Path(folder).iterdir() if "bench" in path.name] == []
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["embedded"] and document["server"].startswith(("Valkey", "Redis"))
    assert document["machine"]["cores"] == os.cpu_count()
    found = {row["row"]: row for row in document["rows"]}
    assert list(found) == ROWS
    assert all(row["exact"] and row["figure"] > 0 for row in found.values())
    assert found["latency"]["figure"] <= found["latency"]["p99"] <= found["latency"]["worst"]
    assert found["rss"]["supervisor"] > 10
    assert list(tmp_path.iterdir()) == []


def test_bench_leaves_other_data_on_the_server_unchanged(server: Server) -> None:
    with server.client() as client:
        client.set("{bench}:queues", "somebody's")
        client.set("bench-somebody", "else's")
        before = set(client.keys())
        done = millstream("bench", "--rows", "results,bytes", "--seconds", "0.1", "--url", server.url, url=server.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert set(client.keys()) == before
    lines = done.stdout.splitlines()
    assert lines[4].split() == ["ROW", "FIGURE", "UNIT", "JOBS", "EXACT", "WHAT"]
    assert [line.split()[0] for line in lines[5:]] == ["results", "bytes"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_bench_leaves_no_keys_and_no_workers(server: Server, number: signal.Signals) -> None:
    words = [*MILLSTREAM, "bench", "--rows", "drain", "--seconds", "600", "--url", server.url]
    with server.client() as client:
        bench = subprocess.Popen(words, env=environment(server.url), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        eventually(lambda: client.keys("*:q:default}:s"), "its jobs on the server")
        bench.send_signal(number)
        _, said = bench.communicate(timeout=PATIENCE)
        assert (bench.returncode, said) == (128 + number, b"")
        assert client.keys() == []
        eventually(lambda: len(client.client_list()) == 1, "its workers to exit")


def test_an_unknown_row_is_a_usage_error() -> None:
    done = millstream("bench", "--rows", "drain,nonsense", url="")
    assert done.returncode == 2
    assert done.stderr == f"millstream: there is no row 'nonsense'; the rows are {', '.join(ROWS)}\n"


def test_an_unreachable_server_is_reported_in_one_line() -> None:
    assert millstream("bench", "--url", "memory://", url="").returncode == 2
    with running_server() as server:
        url = server.url
    done = millstream("bench", "--rows", "bulk", "--url", url, url="")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "cannot be reached" in done.stderr and "Is the server running?" in done.stderr
