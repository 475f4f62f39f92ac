"""Handle the events of each account one at a time and in order. A dead event stops its account until the key is cleared.

    python examples/ordered_events.py

prints

    ann: 100, 70, 90
    bob: 5
    stopped: bob, 3 dead letters
    replayed: 3
    bob: 5, -50, 30, 15
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from millstream import Delivery, Millstream, RetryPolicy

app = Millstream(namespace="accounts")


@dataclass
class Movement:
    account: str
    amount: int


movements = app.topic("movements", Movement, order_by=lambda movement: movement.account, shards=4)
booked: defaultdict[str, list[int]] = defaultdict(list)
overdraft = {"bob": 0}


@movements.subscribe("ledger", on_failure="stop", retry=RetryPolicy(1, delay=0.01))
async def book(movement: Movement, delivery: Delivery) -> None:
    if movement.account == "ann" and movement.amount == 70 and delivery.attempt == 1:
        raise ConnectionError("the bank does not answer")  # retried; ann's later events wait for the retry
    if sum(booked[movement.account]) + movement.amount < -overdraft.get(movement.account, 0):
        raise ValueError("not enough money")
    booked[movement.account].append(movement.amount)


def statement(account: str) -> str:
    return f"{account}: {', '.join(map(str, booked[account]))}"


async def main() -> None:
    ledger = movements.group("ledger")
    async with app, app.worker():
        await movements.publish_many(Movement("ann", amount) for amount in (100, 70, 90))
        await movements.publish_many(Movement("bob", amount) for amount in (5, -50, 30, 15))
        while len(booked["ann"]) < 3 or len(await ledger.dead.list()) < 3:
            await asyncio.sleep(0.01)
        print(statement("ann"), statement("bob"), sep="\n")
        for stopped in await ledger.stopped_keys():
            print(f"stopped: {stopped.key.decode()}, {stopped.waiting} dead letters")

        overdraft["bob"] = 100  # fix the cause, then clear the key
        print(f"replayed: {await ledger.clear('bob')}")
        while len(booked["bob"]) < 4:
            await asyncio.sleep(0.01)
        print(statement("bob"))


if __name__ == "__main__":
    asyncio.run(main())
