"""URLs are parsed and checked. No message about a URL contains its password."""

from __future__ import annotations

from typing import get_args

import pytest

from millstream.errors import UsageError
from millstream.url import Host, Scheme, parse_url

SECRET = "hunter2"


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
    (host,) = url.hosts
    assert (url.scheme, host.name, host.port, url.db) == parts
    assert url.text == text


def test_user_and_password_are_percent_decoded() -> None:
    url = parse_url("redis://me:p%40ss%2Fword@db")
    assert (url.username, url.password) == ("me", "p@ss/word")


def test_a_unix_url_has_a_path_and_a_database() -> None:
    url = parse_url(f"unix:///run/a%20b.sock?db=4&password={SECRET}")
    assert (url.scheme, url.path, url.db, url.password) == ("unix", "/run/a b.sock", 4, SECRET)


@pytest.mark.parametrize("scheme", ["redis+sentinels", "cluster", "http", "valkey"])
def test_an_unsupported_scheme_is_refused_and_the_supported_ones_are_listed(scheme: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_url(f"{scheme}://:{SECRET}@h1,h2/master")
    message = str(error.value)
    assert repr(scheme) in message
    assert all(f"{known}://" in message for known in get_args(Scheme))
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
        f"redis+cluster://:{SECRET}@h1,,h2",
        f"redis+cluster://:{SECRET}@h1:x,h2",
        f"redis+cluster://:{SECRET}@h1:0",
        f"redis+cluster://:{SECRET}@h1:70000",
        f"redis+cluster://:{SECRET}@[::1,h2",
        f"redis+cluster://:{SECRET}@h1/1",
        f"redis+cluster://:{SECRET}@h1?db=1",
        f"redis+cluster://:{SECRET}@h1?sentinel_password=x",
        f"redis+sentinel://:{SECRET}@h1:26379",
        f"redis+sentinel://:{SECRET}@h1:26379/",
        f"redis+sentinel://:{SECRET}@h1,h2/main/x",
        f"redis+sentinel://:{SECRET}/@h1/main",
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
        (
            f"redis+sentinel://me:{SECRET}@h1,[::1]:5/main/2?sentinel_password={SECRET}",
            "redis+sentinel://me:***@h1:26379,[::1]:5/main/2",
        ),
        (f"rediss+cluster://:{SECRET}@h1,h2:7001", "rediss+cluster://:***@h1:6379,h2:7001"),
        ("embedded://", "embedded://"),
        ("embedded:///srv/jobs", "embedded:///srv/jobs"),
        ("memory://shop", "memory://shop"),
    ],
)
def test_the_loggable_form_of_a_url_contains_no_password(text: str, safe: str) -> None:
    url = parse_url(text)
    assert url.safe == safe
    assert SECRET not in repr(url) + str(url)


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


def test_a_sentinel_url_has_sentinels_a_service_and_a_database() -> None:
    url = parse_url("redis+sentinel://me:p%40@h1,h2:5000,[::1]:5001/main/3?sentinel_username=sue&sentinel_password=s%2F")
    assert url.hosts == (Host("h1", 26379), Host("h2", 5000), Host("::1", 5001))
    assert (url.service, url.db, url.username, url.password) == ("main", 3, "me", "p@")
    assert url.of_server(Host("::1", 6379)) == "redis://me:p%40@[::1]:6379/3"
    assert url.of_sentinel(Host("h1", 26379)) == "redis://sue:s%2F@h1:26379/0"


def test_without_sentinel_credentials_the_sentinels_get_none() -> None:
    assert parse_url("redis+sentinel://me:secret@h1/main").of_sentinel(Host("h1", 26379)) == "redis://h1:26379/0"


def test_a_cluster_url_has_seeds() -> None:
    url = parse_url("redis+cluster://h1,h2:7001,h1:6379")
    assert url.hosts == (Host("h1", 6379), Host("h2", 7001))
    assert (url.is_cluster, url.is_sentinel, url.db) == (True, False, 0)


def test_tls_options_apply_to_every_node_and_sentinel() -> None:
    url = parse_url("rediss+sentinel://h1/main?ssl_ca_certs=/etc/ca.pem&client_name=me")
    assert url.of_server(Host("a", 1)) == "rediss://a:1/0?ssl_ca_certs=%2Fetc%2Fca.pem&client_name=me"
    assert url.of_sentinel(Host("a", 1)) == "rediss://a:1/0?ssl_ca_certs=%2Fetc%2Fca.pem&client_name=me"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("redis://h1,h2", r"names several hosts: use redis\+sentinel:// or redis\+cluster://"),
        ("redis+cluster://h1/2", "a cluster has only database 0: remove the number"),
        ("redis+sentinel://h1", "names no service: add the name of the primary"),
        ("redis+cluster://h1,", "invalid host or port"),
        ("redis+cluster://h1?ssl_cert_reqs=none", r"TLS needs rediss\+cluster://"),
    ],
)
def test_a_mistake_in_a_url_of_several_servers_is_named_with_its_fix(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_url(text)
