"""Redis users with few permissions: what still works for them, and which warnings they get."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import redis

from millstream import Millstream
from millstream.backends.redis import RedisBroker, results
from millstream.broker import Post
from millstream.model.address import Address
from millstream.model.outcome import Kind, Outcome
from tests.stage import looped

PATIENCE = 20.0


@pytest.fixture(params=["valkey", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_server")
    return found


def user(url: str, *rules: str) -> str:
    """Create a user with all permissions except these rules. Returns the URL of the user."""
    name = f"user-{secrets.token_hex(4)}"
    with redis.Redis.from_url(url) as operator:
        operator.execute_command("ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all", *rules)
    return url.replace("unix://", f"unix://{name}:secret@")


def app_at(url: str, namespace: str) -> Millstream:
    app = Millstream(url, namespace=namespace)

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    return app


@asynccontextmanager
async def brokers(namespace: str, *urls: str) -> AsyncGenerator[list[RedisBroker]]:
    opened = [RedisBroker(url, namespace=namespace) for url in urls]
    for broker in opened:
        await broker.open()
    yield opened
    for broker in opened:
        await broker.close()


def new_namespace() -> str:
    return f"test-{secrets.token_hex(6)}"


def warnings(caplog: pytest.LogCaptureFixture, about: str) -> int:
    return sum(about in record.message for record in caplog.records if record.levelno == logging.WARNING)


@looped
async def test_a_worker_without_dangerous_commands_runs_jobs_and_warns_about_the_limits(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_at(user(url, "-@dangerous"), new_namespace())
    async with app, app.worker():
        double = app.tasks["double"]
        assert await (await double.enqueue(1)).result(timeout=PATIENCE) == 2
        # The worker is idle by now and must wake up when this job is due.
        assert await (await double.options(delay=0.9).enqueue(2)).result(timeout=PATIENCE) == 4
    assert warnings(caplog, "may not run INFO") >= 1
    assert warnings(caplog, "Grant +client|unblock") == 1


@looped
async def test_the_server_version_is_known_without_the_permission_to_run_info(url: str) -> None:
    async with brokers(new_namespace(), url, user(url, "-info", "-client", "-config")) as (free, bound):
        assert bound.capabilities.server == free.capabilities.server


@looped
async def test_a_server_that_evicts_keys_causes_a_warning_even_if_config_is_forbidden(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with redis.Redis.from_url(url) as operator:
        operator.config_set("maxmemory-policy", "allkeys-lru")
        try:
            async with brokers(new_namespace(), user(url, "-config")):
                assert warnings(caplog, "maxmemory-policy is 'allkeys-lru'") == 1
        finally:
            operator.config_set("maxmemory-policy", "noeviction")


@looped
async def test_a_caller_that_may_not_subscribe_gets_results_and_one_warning(url: str, caplog: pytest.LogCaptureFixture) -> None:
    namespace = new_namespace()
    worker, caller = app_at(url, namespace), app_at(user(url, "resetchannels"), namespace)
    async with worker, worker.worker(), caller:
        jobs = [await caller.tasks["double"].enqueue(n) for n in range(3)]
        assert [await job.result(timeout=PATIENCE) for job in jobs] == [0, 2, 4]
    assert warnings(caplog, "results cannot be pushed to this process") == 1


@looped
async def test_jobs_end_and_waiters_get_results_if_the_worker_may_not_publish(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LOOK_SECONDS", 0.05)
    async with brokers(new_namespace(), url, user(url, "resetchannels")) as (caller, worker):
        await caller.publish(Address("default"), [Post(each, b"body") for each in "ab"])
        waiting = [asyncio.create_task(caller.results.wait(Address("default"), each, PATIENCE)) for each in "ab"]
        while await caller._calls.node(None).commands.call("HLEN", caller._names(Address("default"))["waiters"]) != 2:
            await asyncio.sleep(0)
        await worker.join(Address("default"), "hand", 30.0)
        entries = (await worker.claim(Address("default"), "hand", 2)).entries
        outcomes = [Outcome(Kind.DONE, entry.ref, each, b"ending", 60.0) for entry, each in zip(entries, "ab", strict=True)]
        assert await worker.settle(Address("default"), "hand", outcomes) == 2
        assert (await caller.inspector.queue(Address("default"))).totals["done"] == 2
        assert await asyncio.gather(*waiting) == [b"ending", b"ending"]
    assert warnings(caplog, "may not PUBLISH") == 1


@looped
async def test_leases_lapse_if_only_some_workers_may_run_info(url: str) -> None:
    async with brokers(new_namespace(), url, user(url, "-info")) as (free, bound):
        now = 1_000_000.0
        for broker in (free, bound):
            broker.set_clock(now)
        await free.publish(Address("default"), [Post("a", b"body")])
        await free.join(Address("default"), "dead", 1.0)
        assert len((await free.claim(Address("default"), "dead", 1)).entries) == 1
        await free.join(Address("default"), "free", 3600.0)
        await bound.join(Address("default"), "bound", 3600.0)
        taken = 0
        for _ in range(20):
            now += 0.5
            for broker, name in ((free, "free"), (bound, "bound")):
                broker.set_clock(now)
                taken += len((await broker.claim(Address("default"), name, 1)).entries)
        assert taken == 1


@looped
async def test_results_are_pushed_to_all_waiters_if_the_namespace_contains_a_space(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LOOK_SECONDS", 3600.0)
    app = app_at(url, f"my app {secrets.token_hex(4)}")
    async with brokers(app.settings.namespace, url) as (worker,):
        async with app:
            job = await app.tasks["double"].enqueue(1)
            waiting = asyncio.create_task(worker.results.wait(Address("default"), job.id, PATIENCE))
            others = asyncio.create_task((await app.broker()).results.wait(Address("default"), job.id, PATIENCE))
            while b"\n" not in (
                await worker._calls.node(None).commands.call("HGET", worker._names(Address("default"))["waiters"], job.id)
                or b""
            ):
                await asyncio.sleep(0)
            await worker.join(Address("default"), "hand", 30.0)
            (entry,) = (await worker.claim(Address("default"), "hand", 1)).entries
            await worker.settle(Address("default"), "hand", [Outcome(Kind.DONE, entry.ref, job.id, b"ending", 60.0)])
            assert [await waiting, await others] == [b"ending", b"ending"]
