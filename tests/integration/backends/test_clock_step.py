"""A step of the server's clock, or a suspended machine, does not make live workers look dead."""

from __future__ import annotations

import asyncio
import secrets
import time

from millstream.backends.redis import RedisBroker
from millstream.backends.redis.keys import queue_keys
from millstream.model.address import Address

MARKED = 1e15
"""Subtracted from the time at which a lease was first seen overdue; the result is stored as the score of the lease."""


def test_after_a_jump_of_the_server_clock_no_lease_lapses_before_it_could_be_renewed(valkey_server: str) -> None:
    async def main() -> None:
        namespace = secrets.token_hex(4)
        keys = queue_keys(namespace, Address("q"))
        broker = RedisBroker(valkey_server, namespace=namespace)
        await broker.join(Address("q"), "living", 30.0)
        await broker.join(Address("q"), "looking", 30.0)
        await broker.claim(Address("q"), "looking", 0)
        # Simulate a clock step of one minute: the last lease check is long ago, and the lease is already overdue.
        call = broker._calls.node(None).commands.call
        past = int(time.time() * 1000) - 60_000
        await call("HSET", keys["meta"], "seen", past)
        await call("ZADD", keys["leases"], past, "living")
        await broker.claim(Address("q"), "looking", 0)
        await call("ZADD", keys["leases"], past - MARKED, "living")  # the lease was marked overdue before
        await broker.claim(Address("q"), "looking", 0)
        assert await call("ZSCORE", keys["leases"], "living") is not None
        calm_ms = int(await call("HGET", keys["meta"], "calm")) - time.time() * 1000
        assert calm_ms > 10_000, "more than a third of the longest lease"
        assert await broker.renew(Address("q"), {"living": 30.0}) == set()
        await broker.close()

    asyncio.run(main())


def test_lease_checks_a_second_apart_do_not_count_as_a_clock_jump(valkey_server: str) -> None:
    async def main() -> None:
        namespace = secrets.token_hex(4)
        keys = queue_keys(namespace, Address("q"))
        broker = RedisBroker(valkey_server, namespace=namespace)
        await broker.join(Address("q"), "dead", 30.0)
        await broker.join(Address("q"), "looking", 30.0)
        await broker.claim(Address("q"), "looking", 0)
        call = broker._calls.node(None).commands.call
        now = int(time.time() * 1000)
        await call("HSET", keys["meta"], "seen", now - 2_000)
        await call("ZADD", keys["leases"], now - 60_000, "dead")
        await broker.claim(Address("q"), "looking", 0)
        assert now - MARKED <= float(await call("ZSCORE", keys["leases"], "dead")) < 0
        await broker.close()

    asyncio.run(main())


def test_a_server_stall_does_not_count_against_a_lease_that_was_already_overdue(valkey_server: str) -> None:
    async def main() -> None:
        namespace = secrets.token_hex(4)
        keys = queue_keys(namespace, Address("q"))
        broker = RedisBroker(valkey_server, namespace=namespace)
        await broker.join(Address("q"), "late", 30.0)
        await broker.join(Address("q"), "looking", 30.0)
        call = broker._calls.node(None).commands.call
        now = int(time.time() * 1000)
        await call("ZADD", keys["leases"], now - 4_000, "late")
        await broker.claim(Address("q"), "looking", 0)
        # Simulate a server stall of three seconds after that lease check.
        await call("ZADD", keys["leases"], now - 3_000 - MARKED, "late")
        await call("HSET", keys["meta"], "looked", now - 3_000)
        await broker.claim(Address("q"), "looking", 0)
        assert await call("ZSCORE", keys["leases"], "late") is not None
        # Simulate one more second with lease checks: the lease has now been overdue long enough.
        await call("ZINCRBY", keys["leases"], -1_000, "late")
        await broker.claim(Address("q"), "looking", 0)
        assert await call("ZSCORE", keys["leases"], "late") is None
        await broker.close()

    asyncio.run(main())
