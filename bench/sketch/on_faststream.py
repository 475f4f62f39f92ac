"""FastStream: a stream with a consumer group, 100 handlers at once, acknowledged on success; bulk by its pipelined publish."""

from time import perf_counter

from faststream import AckPolicy
from faststream.redis import RedisBroker, StreamSub

import contest

STREAM, GROUP = "jobs", "workers"
# messages per pipeline of the producer
CHUNK = 1_000


async def send(broker, jobs):
    client = await broker.connect()
    for start in range(0, jobs, CHUNK):
        async with client.pipeline(transaction=False) as pipe:
            for number in range(start, min(start + CHUNK, jobs)):
                await broker.publish(number, stream=STREAM, pipeline=pipe)
            await pipe.execute()


async def drain(url, jobs):
    tally = contest.Tally(jobs)
    broker = RedisBroker(url, logger=None)
    stream = StreamSub(STREAM, group=GROUP, consumer="one", last_id="0", max_records=contest.CONCURRENCY)

    @broker.subscriber(stream=stream, max_workers=contest.CONCURRENCY, ack_policy=AckPolicy.NACK_ON_ERROR)
    async def noop(number: int) -> None:
        tally.handled(number)

    await send(broker, jobs)
    async with broker:
        client = await broker.connect()

        async def left():
            (group,) = await client.xinfo_groups(STREAM)
            return group["pending"] + group["lag"]

        await broker.start()
        await tally.all_handled.wait()
        return tally.rate, await contest.settled(left) and tally.exact


async def enqueue(url, jobs):
    async with RedisBroker(url, logger=None) as broker:
        start = perf_counter()
        await send(broker, jobs)
        rate = jobs / (perf_counter() - start)
        client = await broker.connect()
        return rate, await client.xlen(STREAM) == jobs


if __name__ == "__main__":
    contest.main(drain, enqueue)
