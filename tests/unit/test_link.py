"""Links: one connection, many calls in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from millstream.errors import BrokerRefused, BrokerUnavailable
from millstream.redis import link as link_module
from millstream.redis.connect import Connector, check_version
from millstream.redis.link import Link


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await coroutine

    asyncio.run(bounded())


def test_answers_come_to_those_who_asked(valkey_server: str) -> None:
    async def main() -> None:
        link = Link(Connector(valkey_server))
        answers = await asyncio.gather(*(link.call("ECHO", str(n)) for n in range(500)))
        assert answers == [str(n).encode() for n in range(500)]
        await link.close()

    run(main())


def test_a_caller_that_is_cancelled_in_the_middle_of_a_large_call_harms_nobody(valkey_server: str) -> None:
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


def test_a_dropped_connection_fails_the_calls_in_flight_and_the_next_call_connects_again(valkey_server: str) -> None:
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


def test_a_server_that_is_not_there_is_unavailable_and_named() -> None:
    async def main() -> None:
        with pytest.raises(BrokerUnavailable, match="nowhere"):
            await Link(Connector("unix:///nowhere/at-all.sock")).call("PING")

    run(main())


def test_what_does_not_speak_the_protocol_is_refused() -> None:
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


def test_an_answer_that_never_comes_fails_every_call_in_flight(valkey_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_answer_that_came_while_the_loop_was_held_up_is_not_late(
    valkey_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        link = Link(Connector(valkey_server))
        await link.ready()
        monkeypatch.setattr(link_module, "CALL_TIMEOUT", 0.05)
        call = asyncio.create_task(link.call("PING"))
        await asyncio.sleep(0)
        time.sleep(link_module.LATE_SECONDS + 0.1)  # a handler that does not let go of the loop
        assert await call == b"PONG"
        await link.close()

    run(main())


@pytest.mark.parametrize("version", ["6.2.14", "", "nonsense"])
def test_a_server_that_is_too_old_is_refused_with_the_way_out(version: str) -> None:
    with pytest.raises(BrokerRefused, match=r"7\.0 or newer"):
        check_version({"redis_version": version}, "redis://old")


@pytest.mark.parametrize("version", ["7.0.15", "7.2.4", "8.6.0"])
def test_supported_versions_pass(version: str) -> None:
    check_version({"redis_version": version}, "redis://fine")
    assert version
