"""Where settings come from. No message about a URL contains its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.config import (
    ToolSettings,
    discover_app,
    discover_namespace,
    discover_url,
    parse_url,
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


# --- parsing URLs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("embedded://", ""),
        ("embedded:///srv/Jobs", "/srv/Jobs"),
        ("embedded://Data/jobs", "Data/jobs"),
        ("EMBEDDED://a%20b%3F", "a b?"),
    ],
)
def test_an_embedded_url_has_a_folder(text: str, path: str) -> None:
    url = parse_url(text)
    assert (url.scheme, url.path) == ("embedded", path)


def test_a_memory_url_has_a_name() -> None:
    assert parse_url("memory://").name == ""
    assert parse_url("memory://Shop").name == "Shop"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("redis://", ("redis", "localhost", 6379, 0)),
        ("redis://db:6380/2", ("redis", "db", 6380, 2)),
        ("rediss://db/2?db=3", ("rediss", "db", 6379, 3)),
        ("redis://[::1]:7000", ("redis", "::1", 7000, 0)),
    ],
)
def test_a_server_url_has_host_port_and_database(text: str, parts: tuple[str, str, int, int]) -> None:
    url = parse_url(text)
    assert (url.scheme, url.host, url.port, url.db) == parts
    assert url.text == text


def test_user_and_password_are_percent_decoded() -> None:
    url = parse_url("redis://me:p%40ss%2Fword@db")
    assert (url.username, url.password) == ("me", "p@ss/word")


def test_a_unix_url_has_a_path_and_a_database() -> None:
    url = parse_url(f"unix:///run/a%20b.sock?db=4&password={SECRET}")
    assert (url.scheme, url.path, url.db, url.password) == ("unix", "/run/a b.sock", 4, SECRET)


@pytest.mark.parametrize("scheme", ["redis+sentinel", "redis+cluster", "http", "valkey"])
def test_an_unsupported_scheme_is_refused_and_the_supported_ones_are_listed(scheme: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_url(f"{scheme}://:{SECRET}@h1,h2/master")
    message = str(error.value)
    assert repr(scheme) in message
    assert all(f"{known}://" in message for known in ("embedded", "memory", "redis", "rediss", "unix"))
    assert SECRET not in message


def test_a_host_and_port_without_a_scheme_get_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean redis://localhost:6379"):
        parse_url("localhost:6379")


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        f"user:{SECRET}@host",
        f":{SECRET}@host://x",
        f"redis://:{SECRET}#x@host",
        f"redis://:{SECRET}/x@host:1",
        f"redis://:x{SECRET}@host:port",
        f"redis://:{SECRET}@host:99999",
        f"redis://:{SECRET}@host/nine",
        f"redis://:{SECRET}@host/-1",
        f"redis://:{SECRET}@h1,h2/0",
        f"redis://:{SECRET}@[host",
        f"redis://:{SECRET} @host",
        f"unix://:{SECRET}@",
        f"unix://{SECRET}/relative",
        f"unix:///a.sock?db={SECRET}",
        f"embedded://x?password={SECRET}",
        f"memory://x#{SECRET}",
        f"embedded://%00{SECRET}",
    ],
)
def test_an_invalid_url_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_url(text)
    assert SECRET not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        (f"redis://me:{SECRET}@db:1/2", "redis://me:***@db:1/2"),
        (f"rediss://:{SECRET}@[::1]", "rediss://:***@[::1]:6379/0"),
        (f"rediss://db?password={SECRET}&ssl_password={SECRET}", "rediss://:***@db:6379/0"),
        (f"unix://:{SECRET}@/run/r.sock?db=2", "unix://:***@/run/r.sock?db=2"),
        ("embedded://", "embedded://"),
        ("embedded:///srv/jobs", "embedded:///srv/jobs"),
        ("memory://shop", "memory://shop"),
    ],
)
def test_the_loggable_form_of_a_url_contains_no_password(text: str, safe: str) -> None:
    url = parse_url(text)
    assert url.safe == safe
    assert SECRET not in repr(url) + str(url)


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


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://db?foo=1", "unknown option 'foo'"),
        ("redis://db?protocol=3", "unknown option 'protocol'"),
        ("redis://db?decode_responses=true", "unknown option 'decode_responses'"),
        ("redis://db?socket_timeout=5", "unknown option 'socket_timeout'"),
        ("redis://db?ssl_cert_reqs=none", "TLS needs rediss://"),
        ("unix:///run/redis.sock?path=/other", "unknown option 'path'"),
        ("redis://db?db=1&db=2", "exactly one value"),
        ("redis://db?db=", "exactly one value"),
        ("rediss://db?ssl_cert_reqs=perhaps", "must be none, optional or required"),
        ("rediss://db?ssl_check_hostname=perhaps", "must be true or false"),
    ],
)
def test_options_of_a_url_are_checked(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_url(url)


def test_an_unescaped_password_that_looks_like_an_option_is_not_quoted() -> None:
    with pytest.raises(UsageError) as caught:
        parse_url("redis://user:pa?S3cret@db/0")
    assert "S3cret" not in str(caught.value)


def test_known_options_of_a_url_are_accepted() -> None:
    url = parse_url("rediss://db?db=3&client_name=me&ssl_cert_reqs=none&ssl_check_hostname=false&ssl_ca_certs=/etc/ca.pem")
    assert (url.scheme, url.db) == ("rediss", 3)
