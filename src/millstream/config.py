"""Discovery of URL, namespace and app: argument first, then environment, ``[tool.millstream]``, and the default.

Nothing here opens a connection. A URL may contain a password, so no error message in this file quotes a URL.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from millstream.errors import UsageError
from millstream.url import SUPPORTED

__all__ = [
    "ToolSettings",
    "discover_app",
    "discover_namespace",
    "discover_url",
    "project_root",
    "tool_settings",
]

ROOT_MARKERS = ("pyproject.toml", ".git", "manage.py")
"""A folder with one of these is the root of a project."""

DEFAULT_NAMESPACE = "millstream"
DEFAULT_URL = "embedded://"


@dataclass(frozen=True, kw_only=True)
class ToolSettings:
    """The ``[tool.millstream]`` table of ``pyproject.toml``. A missing key is ``None``."""

    app: str | None = None
    """The app as ``module:attribute``, for the command line."""
    url: str | None = None
    """The server URL."""
    namespace: str | None = None
    """The namespace of all keys."""


def project_root(start: str | Path | None = None) -> Path:
    """Return the nearest folder, from ``start`` upwards, that has a root marker; otherwise ``start``.

    ``start`` defaults to the working directory.
    """
    here = Path(start or ".").resolve()
    for folder in (here, *here.parents):
        if any((folder / marker).exists() for marker in ROOT_MARKERS):
            return folder
    return here


def tool_settings(start: str | Path | None = None) -> ToolSettings:
    """Read and check ``[tool.millstream]`` in the project root's ``pyproject.toml``. Without the file or table, all are
    ``None``.

    Raises:
        UsageError: The file cannot be read, or a key is unknown or not text.
    """
    file = project_root(start) / "pyproject.toml"
    try:
        with file.open("rb") as opened:
            import tomllib  # only needed if the file exists

            document = tomllib.load(opened)
    except FileNotFoundError:
        return ToolSettings()
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    tool: object = document.get("tool", {})
    table: object = cast(dict[str, object], tool).get("millstream", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{file}: tool.millstream must be a table, not {type(table).__name__}")
    known = tuple(ToolSettings.__dataclass_fields__)
    settings: dict[str, str] = {}
    for key, value in cast(dict[str, object], table).items():
        if key not in known:
            raise UsageError(f"{file}: [tool.millstream] has no key {key!r}; the keys are {', '.join(known)}")
        settings[key] = _text(value, f"{file}: [tool.millstream] {key} must be text")
    return ToolSettings(**settings)


def discover_url(url: str | None) -> str:
    """Return the URL to use: the argument, ``$MILLSTREAM_URL``, ``url`` in ``[tool.millstream]``, or the embedded server.

    Raises:
        UsageError: No URL is set, and ``MILLSTREAM_REQUIRE_URL=1`` is set or the process runs in Kubernetes.
    """
    if url is not None:
        return _text(url, f"url must be a URL or None (URLs are {SUPPORTED})")
    if configured := os.environ.get("MILLSTREAM_URL", "").strip() or tool_settings().url:
        return configured
    if _url_required():
        raise UsageError(
            "MILLSTREAM_REQUIRE_URL is set, but there is no URL: pass one to Millstream(), set MILLSTREAM_URL, "
            f"or set url under [tool.millstream] in {project_root() / 'pyproject.toml'}"
        )
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        raise UsageError(
            "there is no URL, and in Kubernetes an embedded server would be private to this pod: set MILLSTREAM_URL, or use "
            "embedded:// if a private server is intended"
        )
    return DEFAULT_URL


def discover_namespace(namespace: str | None) -> str:
    """Return the namespace to use: the argument, ``$MILLSTREAM_NAMESPACE``, ``namespace`` in ``[tool.millstream]``, or
    ``"millstream"``."""
    if namespace is not None:
        return namespace
    return os.environ.get("MILLSTREAM_NAMESPACE", "").strip() or tool_settings().namespace or DEFAULT_NAMESPACE


def discover_app(app: str | None) -> str:
    """Return the app of a command as ``module:attribute``: the argument, ``$MILLSTREAM_APP``, or ``app`` in
    ``[tool.millstream]``.

    Raises:
        UsageError: None of them is set.
    """
    found = app or os.environ.get("MILLSTREAM_APP") or tool_settings().app
    if not found:
        raise UsageError(
            "no app is given: pass it as module:attribute, for example tasks:app, or set $MILLSTREAM_APP, or app under "
            "[tool.millstream]"
        )
    return found


def _text(value: object, rule: str) -> str:
    """Return the text without surrounding blanks. The error names only the value's type: it may be a URL with a password."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise UsageError(f"{rule}, not {'empty text' if isinstance(value, str) else type(value).__name__}")


def _url_required() -> bool:
    value = os.environ.get("MILLSTREAM_REQUIRE_URL", "").strip().lower()
    if value not in {"", "0", "false", "no", "off", "1", "true", "yes", "on"}:
        raise UsageError(f"MILLSTREAM_REQUIRE_URL must be 1 or 0, not {value!r}")
    return value in {"1", "true", "yes", "on"}
