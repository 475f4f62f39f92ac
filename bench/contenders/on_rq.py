"""RQ: SimpleWorker, which does not fork per job. Bulk is its ``enqueue_many``."""

from contextlib import contextmanager

from redis import Redis
from rq import Queue

from contest import functions, told
from contest.contender import Client, Contender, main, program

REDIS_URL = told.URL
queue = Queue("bench", connection=Redis.from_url(REDIS_URL))
RESULT_TTL = 600 if told.RESULTS else 0


@contextmanager
def client():
    function = functions.handler

    def send(number: int) -> None:
        queue.enqueue(function, number, result_ttl=RESULT_TTL)

    def send_many(numbers) -> None:
        queue.enqueue_many([Queue.prepare_data(function, (number,), result_ttl=RESULT_TTL) for number in numbers])

    yield Client(send=send, send_many=send_many)


def worker(kind: str, processes: int) -> list[list[str]]:
    options = ["--worker-class", "rq.SimpleWorker", "--disable-job-desc-logging", "--quiet"]
    return [[program("rq"), "worker", "bench", "--config", "on_rq", *options]] * processes


if __name__ == "__main__":
    main(
        Contender(
            title="RQ",
            distributions=("rq", "redis", "hiredis"),
            settings="`SimpleWorker` (no fork per job), `--quiet --disable-job-desc-logging`, one job at a time per "
            "process, also for I/O handlers; results off: `result_ttl=0`, on: 600 s; bulk: `enqueue_many` of 1,000",
            client=client,
            queued=[["LLEN", "rq:queue:bench"]],
            left=[["LLEN", "rq:queue:bench"], ["ZCARD", "rq:wip:bench"]],
            results=[["EVAL", "return #redis.call('KEYS', 'rq:results:*')", "0"]],
            worker=worker,
        )
    )
