"""arq, with a short poll delay: by default it fetches 500 jobs twice a second. No bulk call, no plain functions."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import uvloop
from arq.connections import RedisSettings, create_pool
from arq.worker import func

from contest import coroutines, told
from contest.contender import Client, Contender, main, program

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
redis_settings = RedisSettings.from_dsn(told.URL)
threads = ThreadPoolExecutor(8)


async def job(context, number: int) -> int | None:
    return await coroutines.handler(number)


async def job_in_thread(context, number: int) -> int | None:
    return await asyncio.get_running_loop().run_in_executor(threads, coroutines.handler, number)


class WorkerSettings:
    functions = [func(job_in_thread if told.KIND == "sync" else job, name="job")]  # noqa: RUF012
    redis_settings = redis_settings
    max_jobs = told.CONCURRENCY
    poll_delay = 0.01
    keep_result = 600 if told.RESULTS else 0
    log_results = False


LOGGING = {"version": 1, "disable_existing_loggers": False, "loggers": {"arq": {"level": "WARNING"}}}


@asynccontextmanager
async def client():
    pool = await create_pool(redis_settings)

    async def send(number: int) -> None:
        await pool.enqueue_job("job", number)

    yield Client(send=send)
    await pool.aclose()


def worker(kind: str, processes: int) -> list[list[str]]:
    return [[program("arq"), "on_arq.WorkerSettings", "--custom-log-dict", "on_arq.LOGGING"]] * processes


if __name__ == "__main__":
    main(
        Contender(
            title="arq",
            distributions=("arq", "redis", "hiredis", "uvloop"),
            settings="`max_jobs=100`, `poll_delay=0.01` (default 0.5), `log_results=False`, log level WARNING; plain "
            "functions by `run_in_executor` with 8 threads; results off: `keep_result=0`, on: 600 s; no bulk call: 100 "
            "concurrent calls; redis-py 5, which it requires",
            client=client,
            queued=[["ZCARD", "arq:queue"]],
            left=[["ZCARD", "arq:queue"], ["EVAL", "return #redis.call('KEYS', 'arq:in-progress:*')", "0"]],
            results=[["EVAL", "return #redis.call('KEYS', 'arq:result:*')", "0"]],
            worker=worker,
        )
    )
