"""SAQ: concurrency 100, results off by ttl=-1. No bulk call."""

import asyncio
from contextlib import asynccontextmanager

import uvloop
from saq import Queue

from contest import coroutines, told
from contest.contender import Client, Contender, main, program

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
queue = Queue.from_url(told.URL, max_concurrent_ops=told.CONCURRENCY)
TTL = 600 if told.RESULTS else -1
# job timeout in seconds; the default of 10 is too short for the start of 40 processes
TIMEOUT = 600


async def job(context, *, number: int) -> int | None:
    return await coroutines.handler(number)


def plain_job(context, *, number: int) -> int | None:
    return coroutines.handler(number)


settings = {
    "queue": queue,
    "functions": [("job", plain_job if told.KIND == "sync" else job)],
    "concurrency": told.CONCURRENCY,
}


@asynccontextmanager
async def client():
    await queue.connect()

    async def send(number: int) -> None:
        await queue.enqueue("job", number=number, ttl=TTL, timeout=TIMEOUT)

    yield Client(send=send)
    await queue.disconnect()


def worker(kind: str, processes: int) -> list[list[str]]:
    return [[program("saq"), "on_saq.settings", "--workers", str(processes), "--quiet"]]


if __name__ == "__main__":
    main(
        Contender(
            title="SAQ",
            distributions=("saq", "redis", "hiredis", "uvloop"),
            settings="`concurrency=100`, `max_concurrent_ops=100` (default 20), `--quiet`; results off: `ttl=-1`, on: 600 "
            "s; no bulk call: 100 concurrent calls",
            client=client,
            queued=[["LLEN", "saq:default:queued"]],
            left=[["LLEN", "saq:default:queued"], ["LLEN", "saq:default:active"], ["ZCARD", "saq:default:incomplete"]],
            results=[["EVAL", "return #redis.call('KEYS', 'saq:job:*')", "0"]],
            worker=worker,
        )
    )
