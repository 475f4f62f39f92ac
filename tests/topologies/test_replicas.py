"""With ``replicas``, accepted means acknowledged by replicas."""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from chaos.topologies import Sentinels
from millstream import Millstream
from millstream.errors import BrokerUnavailable, UsageError
from tests.stage import looped
from tests.topologies.conftest import ENGINE


@pytest.fixture
def own() -> Iterator[Sentinels]:
    """A primary with a replica that the test may stop."""
    with Sentinels(ENGINE) as running:
        yield running


def new_app(url: str, **options: Any) -> Millstream:
    app = Millstream(url, namespace=f"test-{uuid.uuid4().hex}", **options)

    @app.task(name="double", result_ttl=60)
    async def double(number: int) -> int:
        return 2 * number

    return app


@looped
async def test_while_the_replica_does_not_answer_no_enqueue_returns(own: Sentinels) -> None:
    replica = next(server for server in own.servers if server is not own.primary)
    async with new_app(own.url, replicas=1, replicas_timeout=0.2) as app:
        double = app.tasks["double"]
        await double.enqueue(1)
        with replica.stopped():
            with pytest.raises(BrokerUnavailable, match="only 0 of 1 replicas acknowledged") as error:
                await double.options(id="given").enqueue(2)
            assert error.value.job_ids == ("given",)
        job = await double.options(id="given").enqueue(2)
        assert not job.created, "the first call was stored, and is acknowledged now"


@looped
async def test_events_are_confirmed_too(own: Sentinels) -> None:
    replica = next(server for server in own.servers if server is not own.primary)
    async with new_app(own.url, replicas=1, replicas_timeout=0.2) as app:
        topic = app.topic("orders", str)
        await topic.publish("first")
        with replica.stopped(), pytest.raises(BrokerUnavailable, match="only 0 of 1 replicas acknowledged"):
            await topic.publish("second")


@looped
async def test_everything_accepted_survives_the_death_of_the_primary(own: Sentinels) -> None:
    async with new_app(own.url, replicas=1) as app:
        double, accepted, primary = app.tasks["double"], set[str](), own.primary

        async def send() -> None:
            while True:
                try:
                    accepted.add((await double.enqueue(len(accepted))).id)
                except BrokerUnavailable:
                    return

        senders = [asyncio.create_task(send()) for _ in range(20)]
        while len(accepted) < 500:
            await asyncio.sleep(0)
        primary.end(signal.SIGKILL)
        await asyncio.to_thread(own.until_changed, primary)
        for sender in senders:
            sender.cancel()
        await asyncio.wait(senders)
        stored = {view.id for view in await app.inspector.jobs("default", "ready", limit=100_000)}
        assert accepted <= stored


@looped
async def test_outcomes_are_stored_although_no_replica_acknowledges_them(
    own: Sentinels, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "millstream.redis")
    replica = next(server for server in own.servers if server is not own.primary)
    async with new_app(own.url, replicas=1, replicas_timeout=0.2) as app:
        double = app.tasks["double"]
        async with app.worker():
            first = await double.enqueue(1)
            assert await first.result(timeout=30) == 2
            with replica.stopped():
                with pytest.raises(BrokerUnavailable):
                    await double.options(id="second").enqueue(2)
                assert await app.job("second").result(timeout=30) == 4
                while "outcomes are not acknowledged by replicas" not in caplog.text:
                    await asyncio.sleep(0.01)
            await double.options(id="third").enqueue(3)
            assert await app.job("third").result(timeout=30) == 6
            while "replicas acknowledge outcomes again" not in caplog.text:
                await asyncio.sleep(0.01)


@looped
async def test_more_replicas_than_the_sentinels_know_are_refused_at_the_start(sentinels: Sentinels) -> None:
    async with new_app(sentinels.url, replicas=2) as app:
        with pytest.raises(BrokerUnavailable, match=r"replicas=2, but the sentinels of .* know 1 replicas"):
            await app.tasks["double"].enqueue(1)


@pytest.mark.parametrize("url", ["memory://", "embedded://"])
def test_backends_without_replicas_refuse_the_option(url: str) -> None:
    app = new_app(url, replicas=1)
    with pytest.raises(UsageError, match="has no replicas: use a server with replicas"):
        asyncio.run(app.tasks["double"].enqueue(1))
