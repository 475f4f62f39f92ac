"""Links: many calls in flight on one connection."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from millstream.backends.redis import RedisBroker
from millstream.backends.redis import connect as connect_module
from millstream.backends.redis import link as link_module
from millstream.backends.redis.connect import Connector, check_version
from millstream.backends.redis.link import Link
from millstream.errors import BrokerRefused, BrokerUnavailable
from millstream.model.address import Address
from tests.relay import Relay
from tests.stage import looped

PEM = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQggDTuPVY1DTvBat3e
apU07BJlTkA+c9urVYv3T7WpgoKhRANCAAQzbXCBmKtLVHskkzNWT+pMLV2+Nt5H
2jHqTkuUqAIVk+IpVzhJ/OyfpaifoddOvNNVh2mLBW+Gso1ozzfxxAeh
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBfjCCASWgAwIBAgIUGVC/WKeMp/P8KdTp5UY8URtVSYYwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNzAzNTUzMloYDzIxMjYxMDI0
MDM1NTMyWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQzbXCBmKtLVHskkzNWT+pMLV2+Nt5H2jHqTkuUqAIVk+IpVzhJ/Oyf
paifoddOvNNVh2mLBW+Gso1ozzfxxAeho1MwUTAdBgNVHQ4EFgQUDA6v9uPcqiRC
/4ic8KpTvghACjYwHwYDVR0jBBgwFoAUDA6v9uPcqiRC/4ic8KpTvghACjYwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiAqWOqWjvHkbQwNviUbYvC/
NqUPQSymHLvgHN4ucoXmDgIgCe2r6VgFO+0LoiV5q5I0iuBTLfPh5/M4isyWx2OH
m3Q=
-----END CERTIFICATE-----
"""
"""A self-signed key and certificate for tests."""


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await coroutine

    asyncio.run(bounded())


def test_every_caller_receives_its_own_reply(valkey_server: str) -> None:
    async def main() -> None:
        link = Link(Connector(valkey_server))
        answers = await asyncio.gather(*(link.call("ECHO", str(n)) for n in range(500)))
        assert answers == [str(n).encode() for n in range(500)]
        await link.close()

    run(main())


def test_cancelling_one_caller_during_a_large_call_does_not_affect_the_others(valkey_server: str) -> None:
    async def main() -> None:
        link = Link(Connector(valkey_server))
        await link.ready()
        for _ in range(20):
            large = asyncio.create_task(link.call("ECHO", b"x" * 4_000_000))
            others = [asyncio.create_task(link.call("ECHO", str(n))) for n in range(5)]
            await asyncio.sleep(0)
            large.cancel()
            assert await asyncio.gather(*others) == [str(n).encode() for n in range(5)]
        await link.close()

    run(main())


def test_a_dropped_connection_fails_the_calls_in_flight_and_the_next_call_reconnects(valkey_server: str) -> None:
    async def main() -> None:
        link, other = Link(Connector(valkey_server)), Link(Connector(valkey_server))
        await link.ready()
        blocked = asyncio.create_task(link.call_together((("BLPOP", "nothing-here", 0),), block=20))
        while b"cmd=blpop" not in await other.call("CLIENT", "LIST"):
            await asyncio.sleep(0)
        await other.call("CLIENT", "KILL", "ID", link.client_id)
        with pytest.raises(BrokerUnavailable):
            await blocked
        assert await link.call("PING") == b"PONG"
        await link.close()
        await other.close()

    run(main())


def test_a_missing_server_raises_an_error_that_names_its_address() -> None:
    async def main() -> None:
        with pytest.raises(BrokerUnavailable, match="nowhere"):
            await Link(Connector("unix:///nowhere/at-all.sock")).call("PING")

    run(main())


def test_a_server_that_does_not_speak_the_redis_protocol_is_refused() -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BrokerRefused, match="Redis"):
            await Link(Connector(f"redis://127.0.0.1:{port}/0")).call("PING")
        server.close()

    run(main())


def test_a_missing_reply_fails_every_call_in_flight(valkey_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        link = Link(Connector(valkey_server))
        await link.ready()
        monkeypatch.setattr(link_module, "CALL_TIMEOUT", 0.05)
        answers = await asyncio.gather(link.call("BLPOP", "nothing-here", 0), link.call("PING"), return_exceptions=True)
        assert [type(answer) for answer in answers] == [BrokerUnavailable, BrokerUnavailable]
        assert "did not answer" in str(answers[0])
        monkeypatch.undo()
        assert await link.call("PING") == b"PONG"
        await link.close()

    run(main())


def test_queued_calls_do_not_time_out_while_the_server_keeps_replying(
    valkey_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "CALL_TIMEOUT", 1.5)
    busy = "local c = os.clock() while os.clock() - c < 0.1 do end return tonumber(ARGV[1])"

    async def main() -> None:
        link = Link(Connector(valkey_server))
        padding = b"x" * 100_000  # forces the server to read, run and answer the calls one by one
        answers = await asyncio.gather(*(link.call("EVAL", busy, 0, n, padding) for n in range(30)))
        assert answers == list(range(30))
        await link.close()

    run(main())


def test_a_reply_that_arrived_while_the_event_loop_was_blocked_is_not_a_timeout(
    valkey_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        link = Link(Connector(valkey_server))
        await link.ready()
        monkeypatch.setattr(link_module, "CALL_TIMEOUT", 0.05)
        call = asyncio.create_task(link.call("PING"))
        await asyncio.sleep(0)
        time.sleep(link_module.LATE_SECONDS + 0.1)  # a handler that blocks the event loop
        assert await call == b"PONG"
        await link.close()

    run(main())


@pytest.mark.parametrize("version", ["6.2.14", "", "nonsense"])
def test_an_unsupported_server_version_is_refused_with_a_fix(version: str) -> None:
    with pytest.raises(BrokerRefused, match=r"7\.0 or newer"):
        check_version({"redis_version": version}, "redis://old")


@pytest.mark.parametrize("version", ["7.0.15", "7.2.4", "8.6.0"])
def test_supported_server_versions_are_accepted(version: str) -> None:
    check_version({"redis_version": version}, "redis://fine")
    assert version


# -- connections that were dropped silently --------------------------------------------------------------------------------


@looped
async def test_an_idle_connection_that_was_silently_dropped_is_replaced_before_use(
    valkey_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "REST_SECONDS", 0.0)
    monkeypatch.setattr(link_module, "CHECK_TIMEOUT", 0.1)
    relay = Relay()
    async with relay.serve(valkey_server) as url:
        link = Link(Connector(url))
        await link.ready()
        relay.silence()
        answers = await asyncio.gather(*(link.call("ECHO", str(n)) for n in range(10)))
        assert answers == [str(n).encode() for n in range(10)]
        assert (relay.connections, relay.pings.qsize()) == (2, 1), "all calls share one check and one new connection"
        await link.close()


@looped
async def test_an_idle_connection_that_is_alive_is_kept(valkey_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "REST_SECONDS", 0.0)
    relay = Relay()
    async with relay.serve(valkey_server) as url:
        link = Link(Connector(url))
        await link.ready()
        assert await asyncio.gather(*(link.call("ECHO", "here") for _ in range(10))) == [b"here"] * 10
        assert (relay.connections, relay.pings.qsize()) == (1, 1)
        await link.close()


@looped
async def test_a_connection_in_use_is_not_checked(valkey_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay()
    async with relay.serve(valkey_server) as url:
        link = Link(Connector(url))
        await link.call("ECHO", "first")
        monkeypatch.setattr(link_module, "REST_SECONDS", 0.0)
        for _ in range(50):
            await link.call("ECHO", "again")
        assert relay.pings.empty()
        await link.close()


@looped
async def test_an_error_reply_to_the_connection_check_proves_that_the_server_is_alive(
    valkey_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "REST_SECONDS", 0.0)
    operator = Link(Connector(valkey_server))
    await operator.call("ACL", "SETUSER", "no-ping", "on", "nopass", "~*", "+@all", "-ping")
    relay = Relay()
    async with relay.serve(valkey_server) as url:
        link = Link(Connector(url.replace("unix://", "unix://no-ping:any@")))
        await link.ready()
        assert await link.call("ECHO", "here") == b"here"
        assert (relay.connections, relay.pings.qsize()) == (1, 1)
        await link.close()
    await operator.close()


@looped
async def test_the_shortest_timeout_of_all_calls_in_flight_applies(valkey_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "CALL_TIMEOUT", 3600.0)
    link = Link(Connector(valkey_server))
    await link.ready()
    calls = link.call("BLPOP", "nothing-here", 0), link.call("ECHO", "", within=0.05)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert ["did not answer within 0.05 s" in str(answer) for answer in answers] == [True, True]
    await link.close()


@pytest.mark.parametrize(("lease", "seconds"), [(0.5, "1 s"), (3.0, "1 s"), (6.0, "2 s")])
@looped
async def test_a_renewal_times_out_early_enough_to_be_repeated_before_the_lease_lapses(
    valkey_server: str, lease: float, seconds: str
) -> None:
    relay = Relay()
    async with relay.serve(valkey_server) as url:
        broker = RedisBroker(url, namespace="renewals")
        await broker.join(Address("default"), "me", lease)
        relay.silence()
        with pytest.raises(BrokerUnavailable, match=f"did not answer within {seconds}"):
            await broker.renew(Address("default"), {"me": lease, "another": 30.0})
        assert await broker.renew(Address("default"), {"me": lease}) == set()
        await broker.close()


# -- connecting ------------------------------------------------------------------------------------------------------------


class Doors(Connector):
    """Count the connection attempts, and make them fail or wait."""

    def __init__(self, url: str, error: Exception | None = None) -> None:
        super().__init__(url)
        self.error = error
        self.attempts = 0
        self.open = asyncio.Event()

    async def connect(self) -> AbstractConnection:
        self.attempts += 1
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return await super().connect()


@looped
async def test_callers_that_wait_for_a_connection_share_one_attempt_and_its_failure(valkey_server: str) -> None:
    doors = Doors(valkey_server, BrokerUnavailable("nobody is there"))
    link = Link(doors)
    calls = [asyncio.create_task(link.call("PING")) for _ in range(7)]
    await asyncio.sleep(0)
    doors.open.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["nobody is there"] * 7
    assert doors.attempts == 1
    doors.error = None
    assert await link.call("PING") == b"PONG"
    assert doors.attempts == 2
    await link.close()


@looped
async def test_cancelling_one_caller_does_not_cancel_the_shared_connection_attempt(valkey_server: str) -> None:
    doors = Doors(valkey_server)
    link = Link(doors)
    first, second = asyncio.create_task(link.call("PING")), asyncio.create_task(link.call("PING"))
    await asyncio.sleep(0)
    first.cancel()
    doors.open.set()
    assert await second == b"PONG"
    assert first.cancelled()
    assert doors.attempts == 1
    await link.close()


@looped
async def test_closing_a_link_fails_the_callers_that_wait_for_its_connection(valkey_server: str) -> None:
    link = Link(Doors(valkey_server))
    call = asyncio.create_task(link.call("PING"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await link.close()
    with pytest.raises(BrokerUnavailable, match="closed"):
        await call


@looped
async def test_a_nonexistent_database_number_is_refused(valkey_server: str) -> None:
    with pytest.raises(BrokerRefused, match="out of range"):
        await Link(Connector(f"{valkey_server}?db=9999")).call("PING")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"-DENIED Redis is running in protected mode because protected mode is enabled.\r\n", BrokerRefused),
        (b"-ERR max number of clients reached\r\n", BrokerUnavailable),
    ],
)
@looped
async def test_an_error_sent_by_the_server_before_it_disconnects_is_reported(said: bytes, error: type[Exception]) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(error, match=said[1:30].decode()):
        await Link(Connector(f"redis://127.0.0.1:{port}/1")).call("PING")
    server.close()


@looped
async def test_tls_to_a_server_without_tls_raises_an_error_that_names_the_server(
    valkey_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect_module, "CONNECT_TIMEOUT", 0.2)
    async with Relay().serve(valkey_server, tcp=True) as plain:
        url = plain.replace("redis://", "rediss://")
        with pytest.raises(BrokerRefused, match=f"{url}: .* does not speak TLS .* redis://"):
            await Link(Connector(url)).call("PING")


@looped
async def test_a_plain_connection_to_a_tls_port_raises_an_error_that_names_the_server(tmp_path: Path) -> None:
    (tmp_path / "pem").write_text(PEM)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pem")

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    with pytest.raises(BrokerRefused, match=f"{url}: the server speaks TLS on this port. Use rediss://"):
        await Link(Connector(url)).call("PING")
    server.close()


def test_an_error_caused_by_a_full_disk_says_so() -> None:
    said = ResponseError("MISCONF Errors writing to the AOF file: No space left on device")
    error = Connector("redis://here").translate(said)
    assert isinstance(error, BrokerUnavailable)
    assert "redis://here: the server's disk is full" in str(error)
