"""Millstream: ``millstream worker``, results off by ``result_ttl=0``; bulk by ``enqueue_many``."""

from contextlib import asynccontextmanager

from contest import coroutines, told
from contest.contender import Client, Contender, main, program
from millstream import Millstream
from millstream.redis.keys import queue_keys

app = Millstream(told.URL, namespace="bench", result_ttl=600 if told.RESULTS else 0)
task = app.task(name="job")(coroutines.handler)
keys = queue_keys("bench", "default")


@asynccontextmanager
async def client():
    async with app:
        yield Client(
            send=task.enqueue,
            send_many=lambda numbers: app.enqueue_many(task.bind(number) for number in numbers),
            chunk=10_000,
        )


def worker(kind: str, processes: int) -> list[list[str]]:
    return [[program("python"), "-m", "millstream", "worker", "on_millstream:app", "-c", "100", "-p", str(processes)]]


if __name__ == "__main__":
    main(
        Contender(
            title="Millstream",
            distributions=("millstream", "redis", "hiredis", "uvloop"),
            settings="as it comes (leases, timeouts and retries on), extra `fast`; results off: `result_ttl=0`, on: 600 s; "
            "bulk: `enqueue_many` of 10,000",
            client=client,
            queued=[["XLEN", keys["stream"]]],
            left=[["XLEN", keys["stream"]], ["HLEN", keys["held"]], ["XLEN", keys["dead"]], ["HLEN", keys["index"]]],
            results=[["EVAL", "return #redis.call('KEYS', ARGV[1])", "0", keys["ending"].replace("{", "\\{") + "*"]],
            worker=worker,
        )
    )
