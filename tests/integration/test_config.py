"""Where settings come from. No message about a URL contains its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.config import (
    ToolSettings,
    discover_app,
    discover_namespace,
    discover_url,
    project_root,
    tool_settings,
)
from millstream.errors import UsageError

SECRET = "hunter2"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project as the working directory, without the environment variables of Millstream."""
    for name in ("MILLSTREAM_URL", "MILLSTREAM_REQUIRE_URL"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / ".git").mkdir()
    monkeypatch.chdir(folder)
    return folder


def write_tool(project: Path, lines: str) -> None:
    (project / "pyproject.toml").write_text(f"[tool.millstream]\n{lines}\n")


# --- the project root ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", ["pyproject.toml", ".git", "manage.py"])
def test_the_root_is_the_nearest_parent_with_a_marker(tmp_path: Path, marker: str) -> None:
    inner = tmp_path / "outer" / "project" / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "outer" / "manage.py").touch()
    (tmp_path / "outer" / "project" / marker).touch()
    assert project_root(inner) == tmp_path / "outer" / "project"


def test_the_root_is_found_from_the_working_directory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "src").mkdir()
    monkeypatch.chdir(project / "src")
    assert project_root() == project


def test_without_a_marker_the_root_is_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.config.ROOT_MARKERS", ("no-such-marker",))
    assert project_root(tmp_path) == tmp_path


# --- [tool.millstream] --------------------------------------------------------------------------------------------


def test_a_project_without_a_section_has_empty_settings(project: Path) -> None:
    assert tool_settings() == ToolSettings()
    (project / "pyproject.toml").write_text("[project]\nname = 'shop'\n")
    assert tool_settings() == ToolSettings()


def test_all_three_keys_of_the_project_file_are_read(project: Path) -> None:
    write_tool(project, 'app = "shop.jobs:app"\nurl = "redis://db/1"\nnamespace = "shop"')
    assert tool_settings() == ToolSettings(app="shop.jobs:app", url="redis://db/1", namespace="shop")


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ('adress = "x"', "'adress'"),
        ("url = 6379", "url"),
        ('namespace = ""', "namespace"),
        ('app = ["a:b"]', "app"),
    ],
)
def test_an_unknown_key_or_wrong_type_names_the_file_and_the_key(project: Path, lines: str, named: str) -> None:
    write_tool(project, lines)
    with pytest.raises(UsageError) as error:
        tool_settings()
    assert str(project / "pyproject.toml") in str(error.value)
    assert named in str(error.value)


@pytest.mark.parametrize("content", [b"[tool.millstream\n", b"\xff\xfe", b"[tool]\nmillstream = 3\n"])
def test_an_unparsable_file_is_named(project: Path, content: bytes) -> None:
    (project / "pyproject.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        tool_settings()


def test_an_invalid_url_in_the_file_is_not_quoted(project: Path) -> None:
    write_tool(project, f'url = ["redis://:{SECRET}@db"]')
    with pytest.raises(UsageError) as error:
        tool_settings()
    assert SECRET not in str(error.value)


# --- which URL ----------------------------------------------------------------------------------------------------


def test_the_argument_beats_the_environment_beats_the_file_beats_embedded(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert discover_url(None) == "embedded://"
    write_tool(project, 'url = "redis://file"')
    assert discover_url(None) == "redis://file"
    monkeypatch.setenv("MILLSTREAM_URL", "redis://environment\n")
    assert discover_url(None) == "redis://environment"
    assert discover_url("redis://argument") == "redis://argument"


def test_an_empty_variable_counts_as_unset(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_URL", "")
    assert discover_url(None) == "embedded://"


@pytest.mark.parametrize("url", ["", "  ", 6379, b"redis://"])
def test_a_url_argument_that_is_not_text_is_refused(project: Path, url: object) -> None:
    with pytest.raises(UsageError, match="url must be a URL or None"):
        discover_url(url)  # type: ignore[arg-type]


def test_require_url_refuses_the_embedded_default(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_REQUIRE_URL", "1")
    with pytest.raises(UsageError, match="MILLSTREAM_REQUIRE_URL"):
        discover_url(None)
    assert discover_url("embedded://") == "embedded://"
    write_tool(project, 'url = "redis://file"')
    assert discover_url(None) == "redis://file"


def test_require_url_can_be_disabled_but_refuses_other_values(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_REQUIRE_URL", "0")
    assert discover_url(None) == "embedded://"
    monkeypatch.setenv("MILLSTREAM_REQUIRE_URL", "ja")
    with pytest.raises(UsageError, match="MILLSTREAM_REQUIRE_URL"):
        discover_url(None)


def test_in_kubernetes_an_embedded_server_must_be_requested_explicitly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MILLSTREAM_URL", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(UsageError, match=r"in Kubernetes .* set MILLSTREAM_URL, or use embedded://"):
        discover_url(None)
    assert discover_url("embedded://") == "embedded://"
    monkeypatch.setenv("MILLSTREAM_URL", "redis://db/1")
    assert discover_url(None) == "redis://db/1"


def test_the_namespace_comes_from_the_code_then_the_environment_then_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.millstream]\nnamespace = "shop"\n')
    monkeypatch.chdir(tmp_path)
    assert discover_namespace("mine") == "mine"
    assert discover_namespace(None) == "shop"
    monkeypatch.setenv("MILLSTREAM_NAMESPACE", "staging")
    assert discover_namespace("mine") == "mine"
    assert discover_namespace(None) == "staging"
    monkeypatch.delenv("MILLSTREAM_NAMESPACE")
    (tmp_path / "pyproject.toml").write_text("")
    assert discover_namespace(None) == "millstream"


def test_the_app_comes_from_the_command_then_the_environment_then_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.millstream]\napp = "shop:app"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLSTREAM_APP", "web:app")
    assert discover_app("tasks:app") == "tasks:app"
    assert discover_app(None) == "web:app"
    monkeypatch.delenv("MILLSTREAM_APP")
    assert discover_app(None) == "shop:app"
    (tmp_path / "pyproject.toml").write_text("")
    with pytest.raises(UsageError, match="no app is given"):
        discover_app(None)
