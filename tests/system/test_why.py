"""Why a job is not running, on servers that refuse writes."""

from __future__ import annotations

import asyncio

import pytest

from millstream import Millstream
from millstream.errors import ResultTimeout
from tests.system.harness import Server


def test_the_reason_names_a_server_that_became_a_replica(server: Server) -> None:
    app = Millstream(server.url)

    @app.task
    async def send() -> None: ...

    async def scenario() -> None:
        async with app:
            job = await send.enqueue()
            server.client().replicaof("127.0.0.1", "1")
            why = await app.inspector.why("default", job.id)
            assert why.code == "read_only"
            assert "connect to the primary" in why.text
            with pytest.raises(ResultTimeout, match="read-only replica") as caught:
                await job.result(timeout=0.1)
            assert caught.value.why is not None and caught.value.why.code == "read_only"

    asyncio.run(scenario())


def test_the_reason_for_a_missing_job_mentions_full_memory(server: Server) -> None:
    app = Millstream(server.url)

    @app.task
    async def send() -> None: ...

    async def scenario() -> None:
        async with app:
            accepted = await send.enqueue()
            server.client().config_set("maxmemory", "1mb")
            missing = await app.inspector.why("default", "never")
            assert (missing.code, missing.also) == ("unknown", ("full",))
            assert (await accepted.info()).why.code == "no_worker"

    asyncio.run(scenario())
