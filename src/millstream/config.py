"""Discovery of URL, namespace and app: argument first, then environment, ``[tool.millstream]``, and the default.

Nothing here opens a connection. A URL may contain a password, so no error message in this file quotes a URL.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args
from urllib.parse import parse_qs, unquote, urlsplit

from millstream.errors import UsageError

__all__ = [
    "ToolSettings",
    "Url",
    "discover_app",
    "discover_namespace",
    "discover_url",
    "parse_url",
    "project_root",
    "tool_settings",
]

Scheme = Literal["embedded", "memory", "redis", "rediss", "unix"]

ROOT_MARKERS = ("pyproject.toml", ".git", "manage.py")
"""A folder with one of these is the root of a project."""

DEFAULT_NAMESPACE = "millstream"
DEFAULT_URL = "embedded://"

URL_OPTIONS = ("client_name", "db", "password", "username")
TLS_OPTIONS = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_keyfile",
    "ssl_password",
)
"""Options of server URLs, named as in redis-py. ``TLS_OPTIONS`` are for rediss:// only. Timeouts and protocol are not
options."""

SUPPORTED = "embedded://[dir], memory://[name], redis://host:port/db, rediss://host:port/db and unix:///path/to.sock"


@dataclass(frozen=True, kw_only=True)
class ToolSettings:
    """The ``[tool.millstream]`` table of ``pyproject.toml``. A missing key is ``None``."""

    app: str | None = None
    """The app as ``module:attribute``, for the command line."""
    url: str | None = None
    """The server URL."""
    namespace: str | None = None
    """The namespace of all keys."""


@dataclass(frozen=True, kw_only=True)
class Url:
    """A parsed server URL. ``repr()`` and ``safe`` never contain the password; ``text`` may."""

    scheme: Scheme
    text: str = field(repr=False)
    """The original URL, including the password."""
    path: str = ""
    """embedded: the data folder, or empty for the default. unix: the socket."""
    name: str = ""
    """memory: the name of the in-process backend. Empty for a private one."""
    host: str = ""
    port: int = 0
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)

    @property
    def safe(self) -> str:
        """The URL for logs and messages, with the password masked and without options."""
        if self.scheme == "embedded":
            return f"embedded://{self.path}"
        if self.scheme == "memory":
            return f"memory://{self.name}"
        login = f"{self.username}{':***' if self.password else ''}@" if self.username or self.password else ""
        if self.scheme == "unix":
            return f"unix://{login}{self.path}" + (f"?db={self.db}" if self.db else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{login}{host}:{self.port}/{self.db}"


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


def parse_url(url: str) -> Url:
    """Parse and check a server URL.

    Raises:
        UsageError: The URL is invalid. The message never quotes a password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        # Quote the text only if it is clearly host:port. Anything else may be a password in the wrong place.
        hint = f"; did you mean redis://{url}?" if re.fullmatch(r"[\w.-]+:[0-9]{2,5}", url) else ""
        raise UsageError(f"the URL has no scheme{hint}; URLs are {SUPPORTED}")
    scheme = scheme.lower()
    if scheme not in get_args(Scheme):
        quoted = repr(scheme) if re.fullmatch(r"[a-z][a-z0-9+.-]{0,30}", scheme) else "of the URL"
        raise UsageError(f"the scheme {quoted} is not supported; URLs are {SUPPORTED}")
    known = cast(Scheme, scheme)
    if re.search(r"[\s\x00-\x1f\x7f]", rest):
        raise UsageError(f"the {known}:// URL contains blanks or control characters; write a blank as %20")
    if known == "embedded" or known == "memory":
        if "?" in rest or "#" in rest:
            raise UsageError(f"a {known}:// URL takes no options; in a name, write ? as %3F and # as %23")
        value = unquote(rest)
        if "\x00" in value:
            raise UsageError(f"the {known}:// URL contains a null character: remove it")
        return Url(scheme=known, text=url, path=value) if known == "embedded" else Url(scheme=known, text=url, name=value)
    return _server_url(known, url)


def _server_url(scheme: Scheme, url: str) -> Url:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # The parser's own message quotes the URL: with a '#' or '/' in the password, the password is part of the "port".
        raise _malformed(scheme, "has an invalid host or port") from None
    if parts.fragment or "#" in url:
        raise _malformed(scheme, "contains a '#'")
    options = _options(scheme, parts.query)
    username = unquote(parts.username or "") or _last(options, "username")
    password = unquote(parts.password or "") or _last(options, "password")
    path = unquote(parts.path)
    if scheme == "unix":
        if parts.hostname or not path.strip("/"):
            raise _malformed(scheme, "needs an absolute path, with three slashes: unix:///run/redis.sock")
        db = _db(scheme, _last(options, "db"))
        return Url(scheme=scheme, text=url, path=path, db=db, username=username, password=password)
    if "," in parts.netloc.rpartition("@")[2]:
        raise _malformed(scheme, "names several hosts; Sentinel and Cluster are not supported yet")
    db = _db(scheme, _last(options, "db") or path.strip("/"))
    # As in redis-py: an empty host means localhost, and percent escapes in the host are decoded.
    host = unquote(parts.hostname or "") or "localhost"
    port = 6379 if port is None else port
    return Url(scheme=scheme, text=url, host=host, port=port, db=db, username=username, password=password)


def _db(scheme: str, text: str) -> int:
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,9}", text):
        # redis-py would silently use db 0.
        raise _malformed(scheme, "has a database that is not a number")
    return int(text)


def _options(scheme: Scheme, query: str) -> dict[str, list[str]]:
    """Parse and check the query string. Without the check, an unknown option would be ignored, or
    would fail only at the first connection."""
    options = parse_qs(query, keep_blank_values=True)
    known = URL_OPTIONS + TLS_OPTIONS if scheme == "rediss" else URL_OPTIONS
    for name, values in options.items():
        if name not in known:
            # Quote the name only if it is clearly a name. Anything else may be part of a password.
            quoted = repr(name) if re.fullmatch(r"[a-z_]{1,40}", name) else "in it"
            hint = "; TLS needs rediss://" if name in TLS_OPTIONS else ""
            raise UsageError(f"the {scheme}:// URL has an unknown option {quoted}{hint}; the options are {', '.join(known)}")
        if len(values) > 1 or not values[0]:
            raise UsageError(f"the {scheme}:// URL must give the option {name!r} exactly one value")
    if _last(options, "ssl_cert_reqs") not in ("", "none", "optional", "required"):
        raise UsageError("ssl_cert_reqs in the URL must be none, optional or required")
    if _last(options, "ssl_check_hostname").lower() not in ("", "true", "false", "1", "0", "yes", "no"):
        raise UsageError("ssl_check_hostname in the URL must be true or false")
    return options


def _last(options: dict[str, list[str]], key: str) -> str:
    return options.get(key, [""])[-1]


def _malformed(scheme: str, what: str) -> UsageError:
    return UsageError(
        f"the {scheme}:// URL {what}; URLs are {SUPPORTED}. In a password, write / as %2F, # as %23, @ as %40 and ? as %3F"
    )
