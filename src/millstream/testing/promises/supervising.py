"""Promises for supervisors and their observers: control messages, registration, and the count of due jobs."""

from __future__ import annotations

import asyncio

from millstream.broker import Team, WorkerInfo
from millstream.testing.backend import BackendUnderTest, Promises, eventually, promise


def supervisor(name: str, processes: int = 2) -> WorkerInfo:
    team = Team(processes, 1, 4, "backlog", {"up": 1}, "scaled up", rates={"q": 12.5})
    return WorkerInfo(name, "host", 7, "0.1", ["q"], 1.5, {"done": 3}, team=team)


class SupervisingPromises(Promises):
    """The control channel, the registry of supervisors, and the count of due jobs."""

    @promise()
    async def test_control_messages_are_received_once_and_in_order(self, backend: BackendUnderTest) -> None:
        other = await backend.another()
        await backend.broker.control.send("w", b"first", 60)
        await other.control.send("w", b"second", 60)
        await backend.broker.control.send("v", b"\x00other\xff", 60)
        assert await other.control.receive("w") == [b"first", b"second"]
        assert await backend.broker.control.receive("w") == []
        assert await backend.broker.control.receive("v") == [b"\x00other\xff"]

    @promise()
    async def test_control_messages_that_nobody_receives_expire(self, backend: BackendUnderTest) -> None:
        await backend.broker.control.send("stays", b"mail", 600)
        tries = 0

        async def gone() -> bool:
            nonlocal tries
            tries += 1
            name = f"goes-{tries}"
            await backend.broker.control.send(name, b"mail", 0.005)
            await asyncio.sleep(0.01 * tries)
            return await backend.broker.control.receive(name) == []

        await eventually(gone)
        assert await backend.broker.control.receive("stays") == [b"mail"]

    @promise()
    async def test_a_supervisor_is_listed_with_its_team_and_not_among_the_workers(self, backend: BackendUnderTest) -> None:
        process = WorkerInfo("p", "host", 8, "0.1", ["q"], 2.5, {"done": 3}, supervisor="s")
        await backend.broker.register(supervisor("s"), 60)
        await backend.broker.register(process, 60)
        other = await backend.another()
        assert await other.inspector.supervisors() == [supervisor("s")]
        assert await other.inspector.workers() == [process]
        await other.register(supervisor("s", processes=3), 60)
        assert await backend.broker.inspector.supervisors() == [supervisor("s", processes=3)]
        await other.unregister("s")
        assert await backend.broker.inspector.supervisors() == []

    @promise()
    async def test_due_jobs_are_counted_until_a_claim_makes_them_ready(self, backend: BackendUnderTest) -> None:
        inspector = backend.broker.inspector
        await backend.publish("ready")
        await backend.publish("soon-1", "soon-2", delay=5)
        await backend.publish("later", delay=50)
        assert await inspector.due(backend.queue) == 0
        backend.at(5)
        assert await inspector.due(backend.queue) == 2
        await backend.join("c")
        await backend.broker.claim(backend.queue, "c", 0)
        assert await inspector.due(backend.queue) == 0
        backend.at(50)
        assert await inspector.due(backend.queue) == 1
