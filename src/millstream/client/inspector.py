"""Reading through whichever client is at hand, with sync twins."""

from __future__ import annotations

from millstream.address import group_address
from millstream.broker import DeadLetter, Finding, Inspector, JobView, Listed, QueueState, StoppedKey, TopicState, WorkerInfo
from millstream.client.background import twin
from millstream.client.clients import Clients
from millstream.types import Status


class ClientInspector(Inspector):
    """``app.inspector``: the truth from the server, from any loop, and from none by the ``_sync`` twins."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def status(self, queue: str, job_id: str) -> Status:
        return await self._clients.here().ask(lambda broker: broker.inspector.status(queue, job_id))

    async def queues(self) -> list[str]:
        return await self._clients.here().ask(lambda broker: broker.inspector.queues())

    async def queue(self, queue: str) -> QueueState:
        return await self._clients.here().ask(lambda broker: broker.inspector.queue(queue))

    async def topics(self) -> list[str]:
        return await self._clients.here().ask(lambda broker: broker.inspector.topics())

    async def topic(self, topic: str) -> TopicState:
        return await self._clients.here().ask(lambda broker: broker.inspector.topic(topic))

    async def addresses(self) -> list[str]:
        """Every queue by its name, then every group by its topic's and its own: ``topic>group``."""
        groups = [group_address(name, group.name) for name in await self.topics() for group in (await self.topic(name)).groups]
        return [*await self.queues(), *groups]

    async def shards(self, address: str) -> int:
        return await self._clients.here().ask(lambda broker: broker.inspector.shards(address))

    async def stopped_keys(self, queue: str) -> list[StoppedKey]:
        return await self._clients.here().ask(lambda broker: broker.inspector.stopped_keys(queue))

    async def jobs(self, queue: str, status: Listed, *, after: str = "", limit: int = 100) -> list[JobView]:
        return await self._clients.here().ask(lambda broker: broker.inspector.jobs(queue, status, after=after, limit=limit))

    async def job(self, queue: str, job_id: str) -> JobView | None:
        return await self._clients.here().ask(lambda broker: broker.inspector.job(queue, job_id))

    async def dead_letters(self, queue: str, *, after: str = "", limit: int = 100) -> list[DeadLetter]:
        return await self._clients.here().ask(lambda broker: broker.inspector.dead_letters(queue, after=after, limit=limit))

    async def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None:
        return await self._clients.here().ask(lambda broker: broker.inspector.dead_letter(queue, job_id))

    async def due(self, queue: str) -> int:
        return await self._clients.here().ask(lambda broker: broker.inspector.due(queue))

    async def workers(self) -> list[WorkerInfo]:
        return await self._clients.here().ask(lambda broker: broker.inspector.workers())

    async def supervisors(self) -> list[WorkerInfo]:
        return await self._clients.here().ask(lambda broker: broker.inspector.supervisors())

    async def examine(self) -> list[Finding]:
        return await self._clients.here().ask(lambda broker: broker.inspector.examine())

    status_sync = twin(status)
    queues_sync = twin(queues)
    queue_sync = twin(queue)
    topics_sync = twin(topics)
    topic_sync = twin(topic)
    addresses_sync = twin(addresses)
    shards_sync = twin(shards)
    stopped_keys_sync = twin(stopped_keys)
    jobs_sync = twin(jobs)
    job_sync = twin(job)
    dead_letters_sync = twin(dead_letters)
    dead_letter_sync = twin(dead_letter)
    due_sync = twin(due)
    workers_sync = twin(workers)
    supervisors_sync = twin(supervisors)
    examine_sync = twin(examine)
