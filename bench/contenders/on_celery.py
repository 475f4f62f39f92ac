"""Celery, with the settings that its optimization guide recommends for many short tasks. It has no bulk call."""

from contextlib import contextmanager

from celery import Celery

from contest import functions, told
from contest.contender import Client, Contender, main, program

app = Celery("bench", broker=told.URL, backend=told.URL if told.RESULTS else None)
app.conf.update(
    task_ignore_result=not told.RESULTS,
    result_expires=600,
    worker_prefetch_multiplier=128,
    broker_pool_limit=told.CONCURRENCY,
    broker_connection_retry_on_startup=True,
)
task = app.task(functions.handler, name="job")


@contextmanager
def client():
    yield Client(send=task.delay)


def worker(kind: str, processes: int) -> list[list[str]]:
    pool = ["--pool", "threads", "--concurrency", "100"] if kind == "io" else ["--pool", "solo"]
    options = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"]
    line = [program("celery"), "--app", "on_celery", "worker", *pool, *options]
    return [[*line, "--hostname", f"worker{number}@%h"] for number in range(processes)]


if __name__ == "__main__":
    main(
        Contender(
            title="Celery",
            distributions=("celery", "kombu", "redis", "hiredis"),
            settings="pool `solo` (faster for no-ops than threads or prefork), I/O handlers: 100 threads (gevent was "
            "slower), `worker_prefetch_multiplier=128`, `broker_pool_limit=100`, without gossip, mingle and heartbeat, log "
            "level WARNING; acknowledged before the run (its default); results off: `task_ignore_result`, on: 600 s; no "
            "bulk call: one call after the other",
            client=client,
            queued=[["LLEN", "celery"]],
            left=[["LLEN", "celery"], ["HLEN", "unacked"]],
            results=[["EVAL", "return #redis.call('KEYS', 'celery-task-meta-*')", "0"]],
            worker=worker,
        )
    )
