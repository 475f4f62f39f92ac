"""huey: RedisHuey, whose consumer removes a job from its list before it runs the job. No bulk call."""

from contextlib import contextmanager

from huey import RedisHuey

from contest import functions, told
from contest.contender import Client, Contender, main, program

# redis-py 8 allows 100 connections by default, one less than 100 threads and the scheduler need
URL = f"{told.URL}?max_connections={2 * told.CONCURRENCY}"

huey = RedisHuey("bench", url=URL, results=told.RESULTS)
task = huey.task(name="job")(functions.handler)


@contextmanager
def client():
    yield Client(send=task)


def worker(kind: str, processes: int) -> list[list[str]]:
    threads = "100" if kind == "io" else "4"
    options = ["-k", "thread", "-w", threads, "--no-periodic", "--quiet"]
    return [[program("huey_consumer"), "on_huey.huey", *options]] * processes


if __name__ == "__main__":
    main(
        Contender(
            title="huey",
            distributions=("huey", "redis", "hiredis"),
            settings="RedisHuey (blocking pop, no acknowledgement: a job whose worker dies is lost), 4 threads, I/O "
            "handlers: 100 (greenlets were slower), `--no-periodic --quiet`; no bulk call: one call after the other",
            client=client,
            queued=[["LLEN", "huey.redis.bench"]],
            left=[["LLEN", "huey.redis.bench"]],
            results=[["HLEN", "huey.results.bench"]],
            worker=worker,
        )
    )
