"""The log line at a worker's start: what it serves, with how many processes, coroutines and threads."""

from __future__ import annotations

from millstream.backends import where
from millstream.model.address import Address
from millstream.url import parse_url
from millstream.worker import messages
from millstream.worker.supervisor.plan import Plan


def what_it_serves(plan: Plan, hello: messages.Hello) -> str:
    """Return the text of the line."""
    served = [*(address.spoken for address in hello.queues), *(f"broadcast {name!r}" for name in hello.broadcasts)]
    tasks = f": tasks {', '.join(hello.tasks)}" if hello.tasks else ""
    place = where(parse_url(hello.url), hello.namespace)
    return f"{', '.join(served)}{tasks}; {_numbers(plan)}{_over_all_workers(hello)}; at {place}"


def _numbers(plan: Plan) -> str:
    """Describe the number of processes, and the coroutines and threads of each and in total."""
    least, most, orders = plan.processes, plan.most, plan.orders
    processes = f"{least} to {most} processes" if plan.scales else f"{least} process{'' if least == 1 else 'es'}"
    each = f"{processes} with {orders.concurrency} coroutines and {orders.threads} threads"
    if most == 1:
        return each
    sums = (f"{_range(least * slots, most * slots)} {kind}" for slots, kind in _kinds(orders))
    by = f", scaled by {plan.strategy}" if plan.scales else ""
    return f"{each} each: {' and '.join(sums)} in total{by}"


def _kinds(orders: messages.Orders) -> tuple[tuple[int, str], tuple[int, str]]:
    return (orders.concurrency, "coroutines"), (orders.threads, "threads")


def _range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _over_all_workers(hello: messages.Hello) -> str:
    """Describe the limits that apply across all workers."""
    said = [
        f"{Address(address).spoken} is served by {_range(least, most)} processes"
        for address, (least, most) in sorted(hello.consumers.items())
    ]
    return f"; across all workers, {', '.join(said)}" if said else ""
