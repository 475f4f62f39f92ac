"""The baseline for sequential enqueues: redis-py's plain ``xadd`` of a tiny entry, asyncio with uvloop and hiredis."""

from contextlib import asynccontextmanager

from redis.asyncio import Redis

from contest import told
from contest.contender import Client, Contender, main

STREAM = "jobs"


@asynccontextmanager
async def client():
    async with Redis.from_url(told.URL) as redis:

        async def send(number: int) -> None:
            await redis.xadd(STREAM, {b"d": b"%d" % number})

        yield Client(send=send)


if __name__ == "__main__":
    main(
        Contender(
            title="redis-py `xadd`, asyncio",
            distributions=("redis", "hiredis", "uvloop"),
            settings="a baseline, not a queue: one field, no script",
            client=client,
            queued=[["XLEN", STREAM]],
        )
    )
