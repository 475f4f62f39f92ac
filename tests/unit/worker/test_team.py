"""The processes of a supervisor, as the scaler sees them."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from millstream.backends.memory import MemoryBroker
from millstream.model.address import Address
from millstream.worker import messages
from millstream.worker.supervisor.children.child import Child
from millstream.worker.supervisor.children.managed_process import ManagedProcess
from millstream.worker.supervisor.plan import Plan
from millstream.worker.supervisor.supervisor import Supervisor
from tests.stage import looped

ORDERS = messages.Orders("nothing:app", [], 10, 3, burst=False)


async def nothing() -> None: ...


def child(supervisor: Supervisor, orders: messages.Orders, *leases: tuple[Address, str], at_once: int = 0) -> Child:
    """Return a process that serves and holds these leases."""
    made = Child(cast(Any, None), orders)
    made.hello = messages.Hello("memory://", "n", 60.0, 0.0, 0.0, [Address("q")], [], [], slots={"q": 3}, at_once=at_once)
    made.leases = set(leases)
    supervisor.children.add(made)
    return made


@looped
async def test_a_spare_process_counts_neither_as_a_scaled_process_nor_as_another_worker() -> None:
    broker = MemoryBroker()
    await broker.open()
    supervisor = Supervisor(Plan(ORDERS, 1, 4), cast(Any, None))
    supervisor.team.open(broker.inspector, nothing)
    process = ManagedProcess(ORDERS, supervisor.launcher, supervisor.stopping, supervisor.processes)
    process.child = child(supervisor, ORDERS, (Address("q"), "ours"), at_once=9)
    supervisor.processes.managed.append(process)
    for consumer in ("ours", "spare", "theirs"):
        await broker.join(Address("q"), consumer, 600.0)
    child(supervisor, msgspec.structs.replace(ORDERS, suspects_only=True), (Address("q"), "spare"))
    metrics = await supervisor.team._measure()
    (load,) = metrics.loads
    assert (load.consumers, load.ours, load.share) == (2, 1, 0.5)
    assert (load.slots, metrics.concurrency) == (3, 9)
