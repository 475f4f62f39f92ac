"""taskiq: RedisStreamBroker, its only Redis broker that acknowledges. No bulk call."""

from contextlib import asynccontextmanager

from taskiq.serializers import ORJSONSerializer
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from contest import coroutines, told
from contest.contender import Client, Contender, main, program

STREAM = GROUP = "taskiq"

broker = RedisStreamBroker(told.URL, consumer_id="0", max_connection_pool_size=2 * told.CONCURRENCY).with_serializer(
    ORJSONSerializer()
)
if told.RESULTS:
    broker = broker.with_result_backend(RedisAsyncResultBackend(told.URL, result_ex_time=600))
task = broker.register_task(coroutines.handler, task_name="job")


@asynccontextmanager
async def client():
    await broker.startup()
    yield Client(send=task.kiq)
    await broker.shutdown()


def worker(kind: str, processes: int) -> list[list[str]]:
    options = ["--max-async-tasks", "100", "--max-prefetch", "100", "--log-level", "WARNING", "--no-parse"]
    return [[program("taskiq"), "worker", "on_taskiq:broker", "--workers", str(processes), *options]]


if __name__ == "__main__":
    main(
        Contender(
            title="taskiq",
            distributions=("taskiq", "taskiq-redis", "orjson", "redis", "hiredis", "uvloop"),
            settings="RedisStreamBroker (`xread_count=100`, `max_connection_pool_size=200`), ORJSONSerializer, "
            "`--max-async-tasks 100 --max-prefetch 100 --no-parse`, log level WARNING; acknowledged after the run; entries "
            "stay in the stream; no bulk call: 100 concurrent calls",
            client=client,
            queued=[["XLEN", STREAM]],
            left=[["XPENDING", STREAM, GROUP]],
            results=[["EVAL", "return redis.call('DBSIZE') - 1", "0"]],
            worker=worker,
        )
    )
