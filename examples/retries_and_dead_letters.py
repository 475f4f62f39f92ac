"""Failed jobs are retried. A job that fails for good becomes a dead letter, which you can read, and replay after a fix.

    python examples/retries_and_dead_letters.py

prints

    charged in attempt 3
    rejected: Reject: the card is stolen
    exhausted after 2 attempts: KeyError: 'Atlantis'
    replayed: tax of 0.00
"""

import asyncio
from decimal import Decimal

from millstream import Millstream, Reject, RetryPolicy, current_job
from millstream.errors import JobFailed

app = Millstream(namespace="retries")

TAX = {"France": Decimal("0.20"), "Greece": Decimal("0.24")}


class GatewayDown(Exception):
    pass


@app.task(retry=RetryPolicy(5, delay=0.1, backoff="exponential", on=(GatewayDown,)))
async def charge(card: str) -> str:
    """Make at most six attempts, with growing delays. Only GatewayDown is retried."""
    attempt = current_job().attempt
    if card == "stolen":
        raise Reject("the card is stolen")  # dead immediately, without a retry
    if attempt < 3:
        raise GatewayDown("503 Service Unavailable")
    return f"charged in attempt {attempt}"


@app.task(retry=RetryPolicy(1, delay=0.1))
def tax(country: str, total: Decimal) -> Decimal:
    """A plain function runs in a thread."""
    return (total * TAX[country]).quantize(Decimal("0.01"))


async def main() -> None:
    async with app, app.worker():
        print(await (await charge.enqueue("good")).result(timeout=10))

        try:
            await (await charge.enqueue("stolen")).result(timeout=10)
        except JobFailed as failed:
            print(f"{failed.reason}: {failed.error_type}: {failed.error}")

        job = await tax.enqueue("Atlantis", Decimal("9.90"))
        try:
            await job.result(timeout=10)
        except JobFailed:
            letter = await app.dead.show(job.id)
            assert letter is not None and "TAX[country]" in letter.traceback
            print(f"{letter.reason} after {letter.attempts} attempts: {letter.error_type}: {letter.error}")

        TAX["Atlantis"] = Decimal(0)  # fix the bug; the replayed job keeps its id and has all its attempts again
        await app.dead.replay(task="tax")
        print(f"replayed: tax of {await job.result(timeout=10)}")

        await app.dead.purge(task="charge")
        assert await app.dead.list() == []


if __name__ == "__main__":
    asyncio.run(main())
