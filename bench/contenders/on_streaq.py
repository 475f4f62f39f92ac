"""streaq: results off by ttl=0, no log line per task. Bulk is its ``enqueue_many``."""

from contextlib import asynccontextmanager

from streaq import Worker

from contest import coroutines, told
from contest.contender import Client, Contender, main, program

worker = Worker(redis_url=told.URL, concurrency=told.CONCURRENCY, anyio_kwargs={"use_uvloop": True})
task = worker.task(name="job", silent=True, ttl=600 if told.RESULTS else 0)(coroutines.handler)


@asynccontextmanager
async def client():
    async with worker:

        async def send(number: int) -> None:
            await task.enqueue(number)

        async def send_many(numbers) -> None:
            await worker.enqueue_many([task.enqueue(number) for number in numbers])

        yield Client(send=send, send_many=send_many)


def command(kind: str, processes: int) -> list[list[str]]:
    return [[program("streaq"), "run", "on_streaq:worker", "--workers", str(processes)]]


STREAM = worker.stream_key + worker.priorities[-1]

if __name__ == "__main__":
    main(
        Contender(
            title="streaq",
            distributions=("streaq", "coredis", "uvloop"),
            settings="`concurrency=100` (prefetch and threads follow it), `silent=True`; results off: `ttl=0`, on: 600 s; "
            "bulk: `enqueue_many` of 1,000 (larger ones are slower); uses coredis, which has its own parser",
            client=client,
            queued=[["XLEN", STREAM]],
            left=[["XLEN", STREAM]],
            results=[["EVAL", "return #redis.call('KEYS', ARGV[1])", "0", worker.results_key + "*"]],
            worker=command,
        )
    )
