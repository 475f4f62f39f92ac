"""Millstream: one worker in this process, results off; bulk by ``enqueue_many``."""

from time import perf_counter

import contest
from millstream import Millstream

# jobs per enqueue_many, which returns one Job each
CHUNK = 10_000


async def send(app, task, jobs):
    for start in range(0, jobs, CHUNK):
        await app.enqueue_many(task.bind(number) for number in range(start, min(start + CHUNK, jobs)))


async def drain(url, jobs):
    tally = contest.Tally(jobs)
    app = Millstream(url)

    @app.task(result_ttl=0)
    async def noop(number: int) -> None:
        tally.handled(number)

    async def left():
        queue = await app.inspector.queue("default")
        return queue.ready + queue.running + queue.scheduled + queue.dead

    async with app:
        await send(app, noop, jobs)
        async with app.worker(concurrency=contest.CONCURRENCY):
            await tally.all_handled.wait()
            return tally.rate, await contest.settled(left) and tally.exact


async def enqueue(url, jobs):
    app = Millstream(url)

    @app.task(result_ttl=0)
    async def noop(number: int) -> None: ...

    async with app:
        start = perf_counter()
        await send(app, noop, jobs)
        rate = jobs / (perf_counter() - start)
        return rate, (await app.inspector.queue("default")).ready == jobs


if __name__ == "__main__":
    contest.main(drain, enqueue)
