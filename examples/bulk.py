"""Enqueue many jobs in one call. Refused calls are reported; all others are enqueued.

    python examples/bulk.py

prints

    10,000 accepted
    10,000 sent, 500 of them by express
    2 refused: PayloadTooLarge, TypeError; 1 accepted
"""

import asyncio

from millstream import Millstream
from millstream.errors import BulkError

app = Millstream(namespace="bulk")
mail = app.queue("mail", max_length=100_000)  # beyond this, enqueue raises QueueFull


@app.task(queue="mail", max_payload_bytes=1000)
async def send(to: str, subject: str = "News", express: bool = False) -> bool:
    return express


async def main() -> None:
    async with app:
        # The generator is read lazily, and the calls are sent in batches.
        calls = (send.bind(f"reader{n}@example.com", express=n % 20 == 0) for n in range(10_000))
        jobs = await app.enqueue_many(calls)
        print(f"{len(jobs):,} accepted")

        async with app.worker(concurrency=200):
            sent = await asyncio.gather(*(job.result(timeout=60) for job in jobs))
        print(f"{len(sent):,} sent, {sum(sent)} of them by express")

        try:
            await app.enqueue_many([send.bind("a@example.com"), send.bind("b" * 2000), send.bind(None)])  # type: ignore[arg-type]
        except BulkError as error:
            refused = ", ".join(sorted(type(each).__name__ for each in error.failed.values()))
            print(f"{len(error.failed)} refused: {refused}; {len(error.results) - len(error.failed)} accepted")
            await error.results[0].cancel()


if __name__ == "__main__":
    asyncio.run(main())
