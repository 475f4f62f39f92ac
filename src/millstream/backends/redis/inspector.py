"""RedisInspector: read jobs, queues, topics and workers."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from millstream.backends.redis.calls import Calls
from millstream.backends.redis.connect import parse_info
from millstream.backends.redis.keys import GROUP, SUSPECTS
from millstream.backends.redis.topology import Topology
from millstream.broker import (
    Finding,
    GroupState,
    Inspector,
    JobView,
    Listed,
    QueueState,
    Standing,
    StoppedKey,
    TopicState,
    Trouble,
    WorkerInfo,
)
from millstream.errors import BrokerError, BrokerUnavailable
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter, decode_letter
from millstream.model.ending import decode_ending
from millstream.model.message import ErrorNote, decode_message
from millstream.model.types import Status

_LOCATIONS: dict[bytes, Status] = {b"h": "scheduled", b"p": "blocked", b"d": "dead", b"ready": "ready", b"running": "running"}
PAGE_LETTERS = 20
"""Dead letters read per call."""
PAGE_BYTES = 256 * 1024
"""A page of dead letters ends when it has this many bytes, since a body may have a megabyte."""

NOTE = b"n"
"""The field in which scripts return the note about the handling of a dead letter."""
TRIED, UNHANDLED = b"t", b"u"
"""The first byte of a note. After TRIED comes the message of the next attempt; after UNHANDLED, the ``DeadLetter`` that says
why there is no further attempt."""

PAGE_KEYS = 200
"""Stopped keys read per call."""

_TOTALS: tuple[str, ...] = ("published", "done", "retried", "dead", "expired", "cancelled", "released", "lapsed")
_decode_worker = msgspec.msgpack.Decoder(WorkerInfo).decode


class RedisInspector(Inspector):
    """Reads through the broker's connections."""

    def __init__(self, calls: Calls, topology: Topology) -> None:
        self._calls = calls
        self._topology = topology
        self._run, self._call, self._names = calls.run, calls.call, calls.names

    async def status(self, queue: Address, job_id: str) -> Status:
        location, ending = await self._run("status", queue, GROUP, job_id)
        if location:
            return _LOCATIONS[location]
        return cast(Status, decode_ending(ending).status) if ending else "unknown"

    async def queues(self) -> list[str]:
        names = await self._call(None, "SMEMBERS", self._names(None)["queues"])
        return sorted({Address(name.decode()).name for name in names})

    async def queue(self, queue: Address) -> QueueState:
        script = "letters" if queue.is_dead else "queue"
        numbers = await self._run(script, queue, GROUP, SUSPECTS)
        entries, running, scheduled, dead, paused, consumers, counters, blocked, stopped, suspects = numbers
        totals = dict.fromkeys(_TOTALS, 0)
        totals.update({k.decode(): int(v) for k, v in zip(counters[::2], counters[1::2], strict=True)})
        return QueueState(
            str(queue),
            ready=entries - running,
            running=running,
            scheduled=scheduled,
            dead=dead,
            paused=bool(paused),
            consumers=consumers,
            totals=totals,
            blocked=blocked,
            stopped=stopped,
            suspects=suspects,
        )

    async def topics(self) -> list[str]:
        names = await self._call(None, "ZRANGE", self._names(None)["topics"], 0, -1)
        return sorted({Address(name.decode()).name for name in names})

    async def topic(self, topic: str) -> TopicState:
        length, delayed, counters, groups, followed = await self._run("topic", Address.of_topic(topic), GROUP)
        totals = {"published": 0} | {k.decode(): int(v) for k, v in zip(counters[::2], counters[1::2], strict=True)}
        states = sorted(map(_group, groups), key=lambda group: group.name)
        return TopicState(topic, length, delayed, totals, states, bool(followed))

    async def shards(self, address: Address) -> int:
        return int(await self._call(address, "HGET", self._names(address)["meta"], "shards") or 0)

    async def stopped_keys(self, queue: Address) -> list[StoppedKey]:
        found: dict[bytes, StoppedKey] = {}
        cursor = b"0"
        while True:
            cursor, rows = await self._run("stopped", queue, cursor, PAGE_KEYS)
            each = iter(rows)
            found.update((row[0], _stopped(*row)) for row in zip(each, each, each, strict=True))
            if cursor == b"0":
                return [found[key] for key in sorted(found)]

    async def jobs(
        self, queue: Address, status: Listed, *, after: str = "", limit: int = 100, task: str | None = None
    ) -> list[JobView]:
        # Scripts search for these bytes anywhere in a body, so the task of each job found is compared below.
        wanted = b"" if task is None else msgspec.msgpack.encode(task)
        while True:
            page, after = await self._page(queue, status, after, limit, wanted)
            found = page if task is None else [view for view in page if view.task == task]
            if found or not after:
                return found

    async def _page(self, queue: Address, status: Listed, after: str, limit: int, wanted: bytes) -> tuple[list[JobView], str]:
        """Return a page of jobs and the cursor after all jobs that were read. The cursor is empty if there are no more."""
        at, _, whose = after.partition(" ")
        if status == "scheduled":
            rows = await self._run("scheduled", queue, GROUP, limit, wanted, at, whose)
            page = [_scheduled(queue, job_id, due, stored) for job_id, due, stored in rows if stored is not None]
            return page, _due_cursor(*rows[-1][:2]) if rows else ""
        if status == "blocked":
            rows = await self._run("blocked", queue, GROUP, limit, wanted, bytes.fromhex(at))
            page = [_blocked(queue, job_id, stored, member.hex()) for member, job_id, stored in rows if stored is not None]
            return page, rows[-1][0].hex() if rows else ""
        if status == "dead":
            page = [JobView.of_letter(letter) for letter in await self.dead_letters(queue, after=after, limit=limit)]
        elif status == "ready":
            page = [_entry(queue, "ready", row) for row in await self._run("ready", queue, GROUP, limit, wanted, at, whose)]
        else:
            time_ms, rows = await self._run("running", queue, GROUP, limit, wanted, at, whose)
            page = [_entry(queue, "running", row, time_ms) for row in rows]
        return page, page[-1].cursor if page else ""

    async def job(self, queue: Address, job_id: str) -> JobView | None:
        location, payload, expires_ms, *found = await self._run("job", queue, GROUP, job_id)
        ending = decode_ending(payload) if payload else None
        status = _LOCATIONS.get(location)
        if status is None:
            return None if ending is None else JobView.of_ending(queue, job_id, ending, expires_ms / 1000)
        if status == "scheduled":
            view = _scheduled(queue, job_id.encode(), *found)
        elif status == "blocked":
            view = _blocked(queue, job_id.encode(), found[1], "")
        elif status == "dead":
            view = JobView.of_letter(dead_letter(queue, *found))
        else:
            view = _entry(queue, status, found[:5], found[5])
        return msgspec.structs.replace(view, id=job_id, ending=ending)

    async def standing(self, queue: Address, job_id: str) -> Standing:
        now_ms, *found = await self._run("standing", queue, job_id)
        if not found:
            return Standing(now_ms / 1000)
        key, turn, stopped = found
        return Standing(now_ms / 1000, key, turn.decode(), stopped.decode().partition(" ")[2])

    async def trouble(self, queue: Address) -> Trouble | None:
        call = self._calls.node(queue).commands.call
        try:
            info = parse_info(await call("INFO", "replication", "persistence", "memory"))
            if info.get("rdb_last_bgsave_status", "ok") != "ok":
                info["refuses"] = (await call("CONFIG", "GET", "stop-writes-on-bgsave-error") or (b"", b"yes"))[1].decode()
        except BrokerUnavailable:
            raise
        except BrokerError:  # The user's ACL does not allow it.
            return None
        return trouble(info)

    async def dead_letters(self, queue: Address, *, after: str = "", limit: int = 100) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        size = 0
        start = f"({after}" if after else "-"
        while len(found) < limit and size < PAGE_BYTES:
            count = min(PAGE_LETTERS, limit - len(found))
            letters = await self._call(queue, "XRANGE", self._names(queue)["dead"], start, "+", "COUNT", count)
            found += await self._noted(queue, letters)
            if len(letters) < count:
                break
            size += sum(len(field) for _, fields in letters for field in fields)
            start = f"({found[-1].cursor}"
        return found

    async def dead_letter(self, queue: Address, job_id: str) -> DeadLetter | None:
        names = self._names(queue)
        at = await self._call(queue, "HGET", names["index"], job_id)
        if not at or not at.startswith(b"d"):
            return None
        found = await self._noted(queue, await self._call(queue, "XRANGE", names["dead"], at[1:], at[1:]))
        return found[0] if found else None

    async def _noted(self, queue: Address, letters: list[tuple[bytes, list[bytes]]]) -> list[DeadLetter]:
        """Decode dead letters and add the notes about their handling. Only dead letters of groups can be handled."""
        if not letters or queue.is_queue:
            return [dead_letter(queue, entry, fields) for entry, fields in letters]
        handling = self._names(queue.dead)["handling"]
        notes = await self._call(queue, "HMGET", handling, *(entry for entry, _ in letters))
        return [
            dead_letter(queue, entry, fields if note is None else [*fields, NOTE, note])
            for (entry, fields), note in zip(letters, notes, strict=True)
        ]

    async def due(self, queue: Address) -> int:
        return int(await self._run("due", queue))

    async def workers(self) -> list[WorkerInfo]:
        return [worker for worker in await self._registered() if worker.team is None]

    async def supervisors(self) -> list[WorkerInfo]:
        return [worker for worker in await self._registered() if worker.team is not None]

    async def _registered(self) -> list[WorkerInfo]:
        return sorted((_decode_worker(raw) for raw in await self._run("workers", None)), key=lambda w: w.started)

    async def examine(self) -> list[Finding]:
        from millstream.backends.redis.doctor import Doctor  # Workers never need it.

        return await Doctor(self, self._run, self._names, self._topology.nodes()).examine()


def _group(row: list[Any]) -> GroupState:
    name, position, lag, entries, running, scheduled, dead, paused, consumers, blocked, stopped = row
    return GroupState(
        name.decode(),
        position.decode(),
        None if lag < 0 else lag,
        ready=entries - running,
        running=running,
        scheduled=scheduled,
        dead=dead,
        paused=bool(paused),
        consumers=consumers,
        blocked=blocked,
        stopped=stopped,
    )


def dead_letter(queue: Address, entry: bytes, fields: list[bytes]) -> DeadLetter:
    """Decode a stored dead letter."""
    stored = dict(zip(fields[::2], fields[1::2], strict=True))
    note = stored.get(NOTE, b"")
    return msgspec.structs.replace(
        _read_letter(stored.get(b"m", b"")),
        id=stored.get(b"i", b"").decode("utf-8", "replace"),
        task=stored.get(b"t", b"").decode("utf-8", "replace"),
        queue=str(queue),
        died_at=int(stored.get(b"a", b"0")) / 1000,
        body=stored.get(b"d", b""),
        cursor=entry.decode(),
        source=stored.get(b"s", b"").decode("utf-8", "replace"),
        key=stored.get(b"k"),
        unhandled=_read_letter(note.removeprefix(UNHANDLED)) if note.startswith(UNHANDLED) else None,
    )


def _read_letter(stored: bytes) -> DeadLetter:
    try:
        return decode_letter(stored)
    except (UnicodeDecodeError, msgspec.MsgspecError) as error:
        why = f"the stored dead letter cannot be decoded: {error}"
        return DeadLetter("malformed", ErrorNote(type(error).__name__, why), 0, 0, 0)


def trouble(info: dict[str, str]) -> Trouble | None:
    """Return why a server refuses writes, according to its INFO, or ``None``."""
    if info.get("role", "master") != "master":
        return Trouble("read_only", "the server is a read-only replica: connect to the primary")
    if info.get("aof_enabled") == "1" and info.get("aof_last_write_status", "ok") != "ok":
        return Trouble("full", "the server cannot write its append-only file and refuses writes: check its log and its disk")
    if info.get("rdb_last_bgsave_status", "ok") != "ok" and info.get("refuses", "yes") == "yes":
        return Trouble("full", "the server could not write its last snapshot and refuses writes: check its log and its disk")
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if limit and used >= limit and info.get("maxmemory_policy", "noeviction") == "noeviction":
        return Trouble("full", "the server's memory is full (maxmemory), so it refuses new jobs", claims=True)
    return None


def _stopped(key: bytes, noted: bytes, waiting: int) -> StoppedKey:
    since, _, by = noted.decode().partition(" ")
    return StoppedKey(key, by, int(since) / 1000, waiting)


def _due_cursor(job_id: bytes, due: bytes) -> str:
    return f"{due.decode()} {job_id.decode()}"


def _scheduled(queue: Address, job_id: bytes, due: bytes, stored: bytes) -> JobView:
    expires, _, body = stored.partition(b"\n")
    return JobView(
        id=job_id.decode(),
        queue=str(queue),
        status="scheduled",
        body=body,
        cursor=_due_cursor(job_id, due),
        due_at=float(due) / 1000 if due else None,
        expires_at=_moment(expires),
    )


def _blocked(queue: Address, job_id: bytes, stored: bytes, cursor: str) -> JobView:
    expires, _, body = stored.split(b"\n", 2)
    return JobView(
        id=job_id.decode(), queue=str(queue), status="blocked", body=body, cursor=cursor, expires_at=_moment(expires)
    )


def _entry(queue: Address, status: Status, row: list[Any], time_ms: int = 0) -> JobView:
    entry, fields, name, idle_ms, deliveries = row
    stored = dict(zip(fields[::2], fields[1::2], strict=True))
    running, body = status == "running", stored.get(b"d", b"")
    return JobView(
        id=_id_in(body),
        queue=str(queue),
        status=status,
        body=body,
        cursor=f"{entry.decode()} {name.decode()}",
        crashes=deliveries - 1 if running else deliveries,
        expires_at=_moment(stored.get(b"x", b"")),
        consumer=name.decode() if running else "",
        since=(time_ms - idle_ms) / 1000 if running else None,
        alone=name == SUSPECTS.encode(),
    )


def _id_in(body: bytes) -> str:
    """Return the id of the message, or an empty string if the body is not a message."""
    try:
        return decode_message(body).id
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return ""


def _moment(expires_ms: bytes) -> float | None:
    return int(expires_ms) / 1000 if expires_ms.isdigit() and int(expires_ms) else None
