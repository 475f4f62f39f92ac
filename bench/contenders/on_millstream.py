"""Millstream: ``millstream worker``, results off by ``result_ttl=0``, bulk by ``enqueue_many``, events by ``publish_many``."""

from contextlib import asynccontextmanager

from contest import coroutines, told
from contest.contender import EVENTS, JOBS, ORDERED, Client, Contender, main, program
from millstream import Batch, Millstream

try:
    from millstream.backends.redis.keys import queue_keys
    from millstream.model.address import Address

    queue, group = Address("default"), Address.of_group
except ImportError:  # an older commit without these packages, for `make bench-quick`
    from millstream.redis.keys import queue_keys  # type: ignore[import-not-found, no-redef]

    queue, group = "default", "{}>{}".format  # type: ignore[assignment]

TOPIC, ORDERED_TOPIC, GROUP = "events", "ordered", "workers"
SHARDS = 8


def key(number: int) -> int:
    """Scatter the keys: consecutive events have keys in a random but fixed order."""
    return number * 2_654_435_761 % 2**32 % told.KEYS[told.KIND]


app = Millstream(told.URL, namespace="bench", result_ttl=600 if told.RESULTS else 0)
if told.KIND in ORDERED:
    topic = app.topic(ORDERED_TOPIC, int, order_by=key, shards=SHARDS, max_length=None)
    topic.subscribe(GROUP)(coroutines.handler)
elif told.KIND in EVENTS:
    topic = app.topic(TOPIC, int, max_length=None)
    topic.subscribe(GROUP, batch=Batch(told.BATCH) if told.KIND == "batch" else None)(coroutines.handler)
else:
    task = app.task(name="job")(coroutines.handler)
keys, of_group = queue_keys("bench", queue), queue_keys("bench", group(TOPIC, GROUP))
of_shards = [queue_keys("bench", address) for address in (group(f"{ORDERED_TOPIC}:{shard}", GROUP) for shard in range(SHARDS))]
of_groups = [of_group, *of_shards]


@asynccontextmanager
async def client():
    async with app:
        if told.KIND in EVENTS:
            yield Client(send=topic.publish, send_many=topic.publish_many, chunk=10_000)
            return
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
            settings="default settings (leases, timeouts and retries on), extra `fast`; results off: `result_ttl=0`, on: 600 "
            f"s; bulk: `enqueue_many` of 10,000; events: a topic without `max_length`, batches: `Batch({told.BATCH})`, "
            f"`publish_many` of 10,000; ordered: `order_by` and `shards={SHARDS}`",
            client=client,
            handlers=(*JOBS, *EVENTS),
            queued=[["XLEN", keys["stream"]], *(["XLEN", each["log"]] for each in of_groups)],
            left=[
                *(["XLEN", each["log"]] for each in of_groups),
                *(["ZCARD", each["blocked"]] for each in of_shards),
                *(
                    [count, each[word]]
                    for each in (keys, *of_groups)
                    for count, word in (("XLEN", "stream"), ("HLEN", "held"), ("XLEN", "dead"), ("HLEN", "index"))
                ),
            ],
            results=[["EVAL", "return #redis.call('KEYS', ARGV[1])", "0", keys["ending"].replace("{", "\\{") + "*"]],
            worker=worker,
        )
    )
