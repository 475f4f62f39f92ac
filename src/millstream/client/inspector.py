"""The inspector of an app: reads through the client of the running loop, combines shards, and has sync versions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from millstream.broker import (
    Finding,
    Inspector,
    JobView,
    Listed,
    QueueState,
    Standing,
    StoppedKey,
    TopicState,
    Trouble,
    Why,
    WorkerInfo,
)
from millstream.broker.sums import sum_queues, sum_topics
from millstream.client.background import sync_version
from millstream.client.clients import Clients
from millstream.client.pages import merged
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter
from millstream.model.types import Status

if TYPE_CHECKING:
    from millstream.broker.explaining import Facts

AT_ONCE = 50
"""Number of topics queried at the same time."""


class ClientInspector(Inspector):
    """``app.inspector``: reads the current state from the server. Works on any event loop, or without one through the ``_sync``
    versions.

    The state of a sharded queue, topic or group is the sum of its shards, and a job is found in any of them. The description
    of a job names its shard, for example ``mail:3``. Each shard can also be inspected by its own address.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def status(self, queue: str, job_id: str) -> Status:
        found = await self._clients.here().of_all(Address(queue), lambda at, broker: broker.inspector.status(at, job_id))
        known: list[Status] = [status for status in found if status != "unknown"]
        return known[0] if known else "unknown"

    async def why(self, queue: str, job_id: str) -> Why:
        """Return why a job is not running; see ``Inspector.why``. In a sharded queue, the shard that has the job answers."""
        found = await self._clients.here().of_all(Address(queue), lambda at, broker: broker.inspector.why(at, job_id))
        return next((why for why in found if why.code != "unknown"), found[0])

    async def facts(self, queue: str, job_id: str) -> Facts:
        found = await self._clients.here().of_all(Address(queue), lambda at, broker: broker.inspector.facts(at, job_id))
        return next((facts for facts in found if facts.view is not None), found[0])

    async def standing(self, queue: str, job_id: str) -> Standing:
        found = await self._clients.here().of_all(Address(queue), lambda at, broker: broker.inspector.standing(at, job_id))
        return next((standing for standing in found if standing.key is not None), found[0])

    async def trouble(self, queue: str) -> Trouble | None:
        found = await self._clients.here().of_all(Address(queue), lambda at, broker: broker.inspector.trouble(at))
        return next((trouble for trouble in found if trouble is not None), None)

    async def queues(self) -> list[str]:
        return await self._clients.here().ask(lambda broker: broker.inspector.queues())

    async def queue(self, queue: str) -> QueueState:
        states = await self._clients.here().of_all(Address(queue), lambda at, broker: broker.inspector.queue(at))
        return states[0] if states[0].queue == queue else sum_queues(Address(queue), states)

    async def topics(self) -> list[str]:
        return await self._clients.here().ask(lambda broker: broker.inspector.topics())

    async def topic(self, topic: str) -> TopicState:
        names = [shard.log for shard in await self._clients.here().addresses(Address.of_topic(topic))]
        states = await asyncio.gather(*map(self._topic, names))
        return states[0] if names == [topic] else sum_topics(topic, states)

    async def _topic(self, name: str) -> TopicState:
        return await self._clients.here().ask(lambda broker: broker.inspector.topic(name))

    async def addresses(self) -> list[str]:
        """Return the names of all queues, then all groups as ``topic/group``."""
        names, groups = await self.topics(), list[str]()
        for start in range(0, len(names), AT_ONCE):
            topics = await asyncio.gather(*map(self.topic, names[start : start + AT_ONCE]))
            groups += [str(Address.of_group(topic.name, group.name)) for topic in topics for group in topic.groups]
        return [*await self.queues(), *groups]

    async def spread(self, address: str) -> list[str]:
        """Return where the messages of a queue or group are: the addresses of its shards, or its own address."""
        return [*map(str, await self._clients.here().addresses(Address(address)))]

    async def shards(self, address: str) -> int:
        return await self._clients.here().ask(lambda broker: broker.inspector.shards(Address(address)))

    async def stopped_keys(self, queue: str) -> list[StoppedKey]:
        found = await self._clients.here().of_all(Address(queue), lambda at, broker: broker.inspector.stopped_keys(at))
        return sorted((stopped for each in found for stopped in each), key=lambda stopped: stopped.key)

    async def jobs(
        self, queue: str, status: Listed, *, after: str = "", limit: int = 100, task: str | None = None
    ) -> list[JobView]:
        client = self._clients.here()

        async def read(at: Address, after: str, limit: int) -> list[JobView]:
            return await client.ask(lambda broker: broker.inspector.jobs(at, status, after=after, limit=limit, task=task))

        return await merged(await client.addresses(Address(queue)), read, _rank, after, limit)

    async def job(self, queue: str, job_id: str) -> JobView | None:
        found = await self._clients.here().of_all(Address(queue), lambda at, broker: broker.inspector.job(at, job_id))
        return next((view for view in found if view is not None), None)

    async def dead_letters(self, queue: str, *, after: str = "", limit: int = 100) -> list[DeadLetter]:
        client = self._clients.here()

        async def read(at: Address, after: str, limit: int) -> list[DeadLetter]:
            return await client.ask(lambda broker: broker.inspector.dead_letters(at, after=after, limit=limit))

        return await merged(await client.addresses(Address(queue)), read, lambda letter: letter.died_at, after, limit)

    async def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None:
        found = await self._clients.here().of_all(Address(queue), lambda at, broker: broker.inspector.dead_letter(at, job_id))
        return next((letter for letter in found if letter is not None), None)

    async def due(self, queue: str) -> int:
        return sum(await self._clients.here().of_all(Address(queue), lambda at, broker: broker.inspector.due(at)))

    async def workers(self) -> list[WorkerInfo]:
        return await self._clients.here().ask(lambda broker: broker.inspector.workers())

    async def supervisors(self) -> list[WorkerInfo]:
        return await self._clients.here().ask(lambda broker: broker.inspector.supervisors())

    async def examine(self) -> list[Finding]:
        return await self._clients.here().ask(lambda broker: broker.inspector.examine())

    status_sync = sync_version(status)
    why_sync = sync_version(why)
    facts_sync = sync_version(facts)
    standing_sync = sync_version(standing)
    trouble_sync = sync_version(trouble)
    queues_sync = sync_version(queues)
    queue_sync = sync_version(queue)
    topics_sync = sync_version(topics)
    topic_sync = sync_version(topic)
    addresses_sync = sync_version(addresses)
    spread_sync = sync_version(spread)
    shards_sync = sync_version(shards)
    stopped_keys_sync = sync_version(stopped_keys)
    jobs_sync = sync_version(jobs)
    job_sync = sync_version(job)
    dead_letters_sync = sync_version(dead_letters)
    dead_letter_sync = sync_version(dead_letter)
    due_sync = sync_version(due)
    workers_sync = sync_version(workers)
    supervisors_sync = sync_version(supervisors)
    examine_sync = sync_version(examine)


def _rank(view: JobView) -> Any:
    """Return the sort key that merges the jobs of several shards into one list: time of death, due time, consumer, or time of
    enqueueing."""
    if view.letter is not None:
        return view.letter.died_at
    if view.status == "scheduled":
        return view.due_at or 0.0
    if view.status == "running":
        return view.consumer
    message = view.message if view.status == "ready" else None
    return 0 if message is None else message.enqueued_ms
