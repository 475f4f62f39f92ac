"""Public values name queues and groups by plain strings, which every encoder accepts."""

from __future__ import annotations

import msgspec
import pytest

from millstream import Problem, Reject, current_job
from tests.stage import looped, new_app, until

pytestmark = pytest.mark.usefixtures("every_backend")


@looped
async def test_queues_and_groups_in_public_values_are_plain_strings() -> None:
    app = new_app()
    told: list[Problem] = []
    app.on_error(told.append)
    queues: list[str] = []

    @app.task
    async def fail() -> None:
        queues.append(current_job().queue)
        raise Reject("spoilt")

    orders = app.topic("orders", int)

    @orders.subscribe("billing")
    async def bill(order: int) -> None:
        raise Reject("spoilt")

    async with app, app.worker():
        job = await fail.enqueue()
        await orders.publish(1)
        await until(lambda: len(told) == 2)
        inspector = app.inspector
        values = [
            await inspector.addresses(),
            await inspector.spread("orders/billing"),
            await inspector.queue("default"),
            await inspector.queue("orders/billing"),
            await inspector.workers(),
            await inspector.jobs("default", "dead"),
            await inspector.dead_letters("orders/billing"),
            await job.info(),
            await app.dead.list(),
            queues,
            [(problem.address, problem.queue, problem.topic, problem.group) for problem in told],
        ]
        for value in values:
            assert msgspec.json.encode(value)
        assert await inspector.addresses() == ["default", "orders/billing"]
