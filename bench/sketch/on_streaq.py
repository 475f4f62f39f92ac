"""streaq: one worker, results off (ttl=0), no line logged per task; bulk by its ``enqueue_many``."""

import asyncio
from time import perf_counter

from streaq import Worker

import contest

# tasks per enqueue_many: one pipeline each; larger ones are slower
CHUNK = 1_000


def declare(url, handler):
    worker = Worker(redis_url=url, concurrency=contest.CONCURRENCY, handle_signals=False)
    return worker, worker.task(name="noop", silent=True, ttl=0)(handler)


async def send(worker, task, jobs):
    for start in range(0, jobs, CHUNK):
        await worker.enqueue_many([task.enqueue(i) for i in range(start, min(start + CHUNK, jobs))])


async def drain(url, jobs):
    tally = contest.Tally(jobs)

    async def noop(number: int) -> None:
        tally.handled(number)

    worker, task = declare(url, noop)
    async with worker:
        await send(worker, task, jobs)
    worker, _ = declare(url, noop)
    running = asyncio.create_task(worker.run_async())
    await tally.all_handled.wait()
    exact = await contest.settled(worker.queue_size) and tally.exact
    running.cancel()
    await asyncio.wait([running])
    return tally.rate, exact


async def enqueue(url, jobs):
    async def noop(number: int) -> None: ...

    worker, task = declare(url, noop)
    async with worker:
        start = perf_counter()
        await send(worker, task, jobs)
        rate = jobs / (perf_counter() - start)
        return rate, await worker.queue_size() == jobs


if __name__ == "__main__":
    contest.main(drain, enqueue)
