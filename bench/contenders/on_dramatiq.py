"""dramatiq: RedisBroker with its default middleware. Its groups do not use a pipeline, so bulk is one call after the other."""

from contextlib import contextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from contest import functions, told
from contest.contender import Client, Contender, main, program

# redis-py 8 allows 100 connections by default, one less than 100 threads and their consumer need
URL = f"{told.URL}?max_connections={2 * told.CONCURRENCY}"

broker = RedisBroker(url=URL)
if told.RESULTS:
    broker.add_middleware(Results(backend=RedisBackend(url=URL), store_results=True, result_ttl=600_000))
dramatiq.set_broker(broker)
task = dramatiq.actor(functions.handler, actor_name="job")


@contextmanager
def client():
    yield Client(send=task.send)


def worker(kind: str, processes: int) -> list[list[str]]:
    name, threads = ("dramatiq-gevent", "100") if kind == "io" else ("dramatiq", "32" if processes == 1 else "8")
    return [[program(name), "on_dramatiq", "--processes", str(processes), "--threads", threads]]


if __name__ == "__main__":
    main(
        Contender(
            title="dramatiq",
            distributions=("dramatiq", "redis", "hiredis", "gevent"),
            settings="RedisBroker, default middleware, 32 threads (faster than 8, 16 or 100; with many processes its "
            "default of 8), I/O handlers: `dramatiq-gevent` with 100; acknowledged after the run; results on: 600 s; no "
            "bulk call: one call after the other",
            client=client,
            queued=[["LLEN", "dramatiq:default"]],
            left=[["LLEN", "dramatiq:default"], ["HLEN", "dramatiq:default.msgs"]],
            # its result keys are hashes of 32 digits
            results=[["EVAL", "return #redis.call('KEYS', ARGV[1])", "0", "?" * 32]],
            worker=worker,
        )
    )
