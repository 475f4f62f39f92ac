"""FastStream: a stream with a consumer group, acknowledged on success. Bulk is its publish in a pipeline. It keeps no
results."""

import os
from contextlib import asynccontextmanager, suppress

from faststream import AckPolicy, FastStream
from faststream.redis import RedisBroker, StreamSub
from redis.exceptions import ResponseError

from contest import coroutines, told
from contest.contender import EVENTS, JOBS, Client, Contender, main, program

STREAM, GROUP = "jobs", "workers"
# one connection per acknowledging handler and a few for reading; with redis-py 8's default of 100, acknowledgements fail
CONNECTIONS = 2 * told.CONCURRENCY

broker = RedisBroker(told.URL, logger=None, max_connections=CONNECTIONS)
app = FastStream(broker, logger=None)
consumer = f"process-{os.getpid()}"
if told.KIND == "batch":
    stream = StreamSub(STREAM, group=GROUP, consumer=consumer, last_id=">", max_records=told.BATCH, batch=True)
    broker.subscriber(stream=stream, ack_policy=AckPolicy.NACK_ON_ERROR)(coroutines.handler)
else:
    stream = StreamSub(STREAM, group=GROUP, consumer=consumer, last_id=">", max_records=told.CONCURRENCY)
    broker.subscriber(stream=stream, max_workers=told.CONCURRENCY, ack_policy=AckPolicy.NACK_ON_ERROR)(coroutines.handler)


@asynccontextmanager
async def client():
    publisher = RedisBroker(told.URL, logger=None, max_connections=CONNECTIONS)
    connection = await publisher.connect()
    with suppress(ResponseError):  # the group exists; a group that the worker creates would skip the waiting entries
        await connection.xgroup_create(STREAM, GROUP, id="0", mkstream=True)

    async def send(number: int) -> None:
        await publisher.publish(number, stream=STREAM)

    async def send_many(numbers) -> None:
        async with connection.pipeline(transaction=False) as pipe:
            for number in numbers:
                await publisher.publish(number, stream=STREAM, pipeline=pipe)
            await pipe.execute()

    # its publish_batch is for lists; for a stream, one call publishes one event, with or without a redis-py pipeline
    yield Client(send=send, send_many=None if told.KIND == "publish" else send_many)
    await publisher.stop()


def worker(kind: str, processes: int) -> list[list[str]]:
    many = ["--workers", str(processes)] if processes > 1 else []
    return [[program("faststream"), "run", "on_faststream:app", *many]]


if __name__ == "__main__":
    main(
        Contender(
            title="FastStream",
            distributions=("faststream", "redis", "hiredis", "uvloop"),
            settings="stream with a consumer group, `max_workers=100`, `max_records=100`, `NACK_ON_ERROR` (acknowledged "
            "after success), `max_connections=200`, no logger; entries stay in the stream; bulk: pipelines of 1,000; keeps "
            f"no results; batches: `batch=True, max_records={told.BATCH}`, which has no `max_workers`; many events: 100 "
            "concurrent `publish` calls (`publish_batch` is for lists), or pipelines of 1,000; it has no order per key, "
            "so those rows show its unordered events",
            handlers=(*JOBS, *EVENTS),
            client=client,
            queued=[["XLEN", STREAM]],
            left=[["XPENDING", STREAM, GROUP]],
            worker=worker,
        )
    )
