"""The baseline for libraries with a synchronous API: redis-py's plain ``xadd`` with hiredis."""

from contextlib import contextmanager

from redis import Redis

from contest import told
from contest.contender import Client, Contender, main

STREAM = "jobs"


@contextmanager
def client():
    with Redis.from_url(told.URL) as redis:
        yield Client(send=lambda number: redis.xadd(STREAM, {b"d": b"%d" % number}))


if __name__ == "__main__":
    main(
        Contender(
            title="redis-py `xadd`, sync",
            distributions=("redis", "hiredis"),
            settings="a baseline, not a queue: one field, no script",
            client=client,
            queued=[["XLEN", STREAM]],
        )
    )
