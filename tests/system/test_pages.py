"""The README and the pages in docs/ work as written, typed by a reader in an empty folder with the built wheel."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from contest import pages
from millstream.model.ordering import fnv1a, key_bytes, shard_of_key
from tests.system.reader import Reader, matches, read_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))
FOLLOWED = [page for page in PAGES if any(block.language in ("python", "console") for block in read_page(ROOT / page))]
FIRST_PAGES = ["README.md", "docs/getting-started.md"]
"""The pages that every reader begins with: followed on every Python found here, the others on the one that runs the tests."""

THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def reader(bin_folder: Path) -> Iterator[Reader]:
    folder = Path(tempfile.mkdtemp(prefix="millstream-")).resolve()
    (folder / "pyproject.toml").touch()  # a project of its own
    with Reader(folder, bin_folder) as reader:
        yield reader
    shutil.rmtree(folder)


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_every_python_block_names_its_file(page: str) -> None:
    unnamed = [block.text for block in read_page(ROOT / page) if block.language == "python" and not block.file]
    assert unnamed == []


@pytest.mark.parametrize("page", FIRST_PAGES)
def test_a_first_page_works_as_written_on_every_python(page: str, reader: Reader) -> None:
    reader.follow(read_page(ROOT / page))
    reader.stop()


@pytest.mark.parametrize("bin_folder", [THIS_PYTHON], indirect=True)
@pytest.mark.parametrize("page", [page for page in FOLLOWED if page not in FIRST_PAGES])
def test_a_page_works_as_written(page: str, reader: Reader) -> None:
    reader.follow(read_page(ROOT / page))
    reader.stop()


def test_the_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert target[1:] in anchors if target.startswith("#") else (ROOT / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", pages.PAGES)
def test_the_figures_of_a_page_are_those_of_the_last_benchmark(page: str) -> None:
    text = (ROOT / page).read_text()
    rows = json.loads((ROOT / "bench" / "results.json").read_text())["rows"]
    assert any(label in text.replace("**", "") for label in pages.FIGURES)
    assert pages.updated(text, rows) == text


def test_the_hashes_on_the_page_about_ordering_are_those_of_keys() -> None:
    text = (DOCS / "guide" / "ordering.md").read_text()
    rows = re.findall(r"^\| `(.+)` \| ([0-9a-f ]*?) ?\| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) == 8
    for written, data, hashed, of_8, of_16 in rows:
        key = key_bytes(ast.literal_eval(written))
        assert key == bytes.fromhex(data)
        assert fnv1a(key) == int(hashed)
        assert (shard_of_key(key, 8), shard_of_key(key, 16)) == (int(of_8), int(of_16))


def test_dots_on_a_page_stand_for_any_output() -> None:
    assert matches("id ... done\n...\nend", "id 7 done\nmore\nand more\nend\n")
    assert not matches("id ... done", "id 7 dead\n")
