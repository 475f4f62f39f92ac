"""Programs without Millstream can publish to an ordered topic, as the page about ordering explains."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from redis.asyncio import Redis

from millstream.backends.embedded import data_folder
from millstream.backends.embedded.folder import socket_path
from tests.system.reader import Reader, read_page

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "ordering.md"
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize("bin_folder", [THIS_PYTHON], indirect=True)
def test_events_published_as_the_ordering_page_explains_keep_their_order(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="millstream-")).resolve()
    (folder / "pyproject.toml").touch()  # makes the folder a project
    with Reader(folder, bin_folder) as reader:
        reader.follow(read_page(PAGE))
        spec = importlib.util.spec_from_file_location("elsewhere", folder / "elsewhere.py")
        assert spec is not None and spec.loader is not None
        elsewhere = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(elsewhere)
        monkeypatch.chdir(folder)

        async def publish() -> None:
            redis = Redis(unix_socket_path=socket_path(data_folder()))
            for number in (3, 4):
                order = {"number": number, "customer": "ada"}
                await elsewhere.publish_from_elsewhere(redis, 8, order, 1_767_225_600_000)
            await redis.aclose()

        asyncio.run(publish())
        lines = [f"order {number} of ada, attempt 1" for number in (1, 2, 3, 4)]
        reader.see(lines[2:])
        assert (folder / "printed").read_text().splitlines() == lines
        reader.stop()
    shutil.rmtree(folder)
