"""Server URLs: one server, Sentinel or Cluster, the embedded server, or memory.

A URL may contain a password, so no error message in this file quotes a URL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal, cast, get_args
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from millstream.errors import UsageError

__all__ = ["SUPPORTED", "Host", "Url", "parse_url"]

Scheme = Literal[
    "embedded",
    "memory",
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "unix",
]

URL_OPTIONS = ("client_name", "db", "password", "username")
SENTINEL_OPTIONS = ("sentinel_password", "sentinel_username")
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
"""Options of server URLs, named as in redis-py. ``TLS_OPTIONS`` are for the rediss schemes only. Timeouts and protocol are not
options."""

SERVER_PORT, SENTINEL_PORT = 6379, 26379

SUPPORTED = (
    "embedded://[dir], memory://[name], redis://host:port/db, rediss://host:port/db, unix:///path/to.sock, "
    "redis+sentinel://host:port,host:port/service/db, redis+cluster://host:port,host:port, and with TLS rediss+sentinel:// and "
    "rediss+cluster://"
)

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<name>[^:\[\]\s]+))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, order=True)
class Host:
    """The address of one server or sentinel."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Url:
    """A parsed server URL. ``repr()`` and ``safe`` never contain a password; ``text`` and ``options`` may."""

    scheme: Scheme
    text: str = field(repr=False)
    """The original URL, including passwords."""
    path: str = ""
    """embedded: the data folder, or empty for the default. unix: the socket."""
    name: str = ""
    """memory: the name of the in-process backend. Empty for a private one."""
    hosts: tuple[Host, ...] = ()
    """The server, the sentinels, or the nodes of a cluster that are asked first."""
    service: str = ""
    """sentinel: the name under which the sentinels know the primary."""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    options: dict[str, str] = field(default_factory=dict, repr=False, hash=False)
    """The options in the query string, by name."""

    @property
    def is_sentinel(self) -> bool:
        """Whether sentinels know which server is the primary."""
        return self.scheme.endswith("+sentinel")

    @property
    def is_cluster(self) -> bool:
        """Whether the keys are spread over the nodes of a cluster."""
        return self.scheme.endswith("+cluster")

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
        hosts = ",".join(map(str, self.hosts))
        if self.is_cluster:
            return f"{self.scheme}://{login}{hosts}"
        return f"{self.scheme}://{login}{hosts}/{f'{self.service}/' if self.service else ''}{self.db}"

    def of_server(self, host: Host) -> str:
        """Return the URL of one server behind Sentinel or in a cluster, with this URL's user, database and options."""
        return self._of(host, self.username, self.password, self.db)

    def of_sentinel(self, host: Host) -> str:
        """Return the URL of one sentinel, with the sentinels' own user."""
        return self._of(host, self.options.get("sentinel_username", ""), self.options.get("sentinel_password", ""), 0)

    def _of(self, host: Host, username: str, password: str, db: int) -> str:
        options = {name: value for name, value in self.options.items() if name in (*TLS_OPTIONS, "client_name")}
        login = (
            f"{quote(username, safe='')}{':' + quote(password, safe='') if password else ''}@" if username or password else ""
        )
        return f"{self.scheme.partition('+')[0]}://{login}{host}/{db}" + (f"?{urlencode(options)}" if options else "")


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
    if "#" in url:
        raise _malformed(scheme, "contains a '#'")
    authority, path, query = _split(scheme, url)
    options = _options(scheme, query)
    login, _, hosts = authority.rpartition("@")
    name, _, secret = login.partition(":")
    username = unquote(name) or options.get("username", "")
    password = unquote(secret) or options.get("password", "")
    known = Url(scheme=scheme, text=url, username=username, password=password, options=options)
    if scheme == "unix":
        if hosts or not path.strip("/"):
            raise _malformed(scheme, "needs an absolute path, with three slashes: unix:///run/redis.sock")
        return replace(known, path=path, db=_db(scheme, options.get("db", "")))
    if known.is_sentinel:
        service, _, db = path.strip("/").partition("/")
        if not re.fullmatch(r"[^@:]+", service):
            raise _malformed(scheme, "names no service: add the name of the primary, as the sentinels know it: /mymaster")
        at = _hosts(scheme, hosts, SENTINEL_PORT)
        return replace(known, hosts=at, service=service, db=_db(scheme, options.get("db", "") or db))
    at = _hosts(scheme, hosts, SERVER_PORT)
    if known.is_cluster:
        if _db(scheme, options.get("db", "") or path.strip("/")):
            raise _malformed(scheme, "has a database number, but a cluster has only database 0: remove the number")
        return replace(known, hosts=at)
    if len(at) > 1:
        several = f"names several hosts: use {scheme}+sentinel:// or {scheme}+cluster://"
        raise _malformed(scheme, several)
    return replace(known, hosts=at, db=_db(scheme, options.get("db", "") or path.strip("/")))


def _split(scheme: Scheme, url: str) -> tuple[str, str, str]:
    """Return the login with the hosts, the path and the query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        # The parser's own message quotes the URL: with a '/' in the password, the password is part of the "port".
        raise _malformed(scheme, "has an invalid host or port") from None
    return parts.netloc, unquote(parts.path), parts.query


def _hosts(scheme: Scheme, text: str, port: int) -> tuple[Host, ...]:
    """Parse ``host:port,host:port``. As in redis-py, an empty host means localhost, and percent escapes are decoded."""
    if not text:
        return (Host("localhost", port),)
    hosts: list[Host] = []
    for each in text.split(","):
        found = _HOST.fullmatch(each if each[:1] != ":" else f"localhost{each}")
        if found is None or not 0 < (at := int(found["port"] or port)) < 65536:
            raise _malformed(scheme, "has an invalid host or port")
        hosts.append(Host(found["v6"] or unquote(found["name"]), at))
    return tuple(dict.fromkeys(hosts))


def _db(scheme: str, text: str) -> int:
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,9}", text):
        # redis-py would silently use db 0.
        raise _malformed(scheme, "has a database that is not a number")
    return int(text)


def _options(scheme: Scheme, query: str) -> dict[str, str]:
    """Parse and check the query string. Without the check, an unknown option would be ignored, or
    would fail only at the first connection."""
    options = parse_qs(query, keep_blank_values=True)
    known = (
        URL_OPTIONS
        + (TLS_OPTIONS if scheme.startswith("rediss") else ())
        + (SENTINEL_OPTIONS if scheme.endswith("+sentinel") else ())
    )
    for name, values in options.items():
        if name not in known:
            # Quote the name only if it is clearly a name. Anything else may be part of a password.
            quoted = repr(name) if re.fullmatch(r"[a-z_]{1,40}", name) else "in it"
            hint = f"; TLS needs rediss{scheme.removeprefix('redis').removeprefix('unix')}://" if name in TLS_OPTIONS else ""
            raise UsageError(f"the {scheme}:// URL has an unknown option {quoted}{hint}; the options are {', '.join(known)}")
        if len(values) > 1 or not values[0]:
            raise UsageError(f"the {scheme}:// URL must give the option {name!r} exactly one value")
    given = {name: values[0] for name, values in options.items()}
    if given.get("ssl_cert_reqs", "") not in ("", "none", "optional", "required"):
        raise UsageError("ssl_cert_reqs in the URL must be none, optional or required")
    if given.get("ssl_check_hostname", "").lower() not in ("", "true", "false", "1", "0", "yes", "no"):
        raise UsageError("ssl_check_hostname in the URL must be true or false")
    return given


def _malformed(scheme: str, what: str) -> UsageError:
    return UsageError(
        f"the {scheme}:// URL {what}; URLs are {SUPPORTED}. In a password, write / as %2F, # as %23, @ as %40 and ? as %3F"
    )
