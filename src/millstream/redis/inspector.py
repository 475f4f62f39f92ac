"""RedisInspector: reading what the scripts wrote."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from millstream.broker import DeadLetter, Inspector, QueueState, WorkerInfo
from millstream.message import ErrorNote
from millstream.outcome import Letter, decode_ending, decode_letter
from millstream.redis.keys import GROUP
from millstream.types import Status

_PLACES: dict[bytes, Status] = {b"h": "scheduled", b"d": "dead", b"ready": "ready", b"running": "running"}
_TOTALS: tuple[str, ...] = ("published", "done", "retried", "dead", "expired", "cancelled", "released", "lapsed")
_decode_worker = msgspec.msgpack.Decoder(WorkerInfo).decode


class RedisInspector(Inspector):
    """Reads through the broker's connection."""

    def __init__(
        self,
        run: Callable[..., Awaitable[Any]],
        call: Callable[..., Awaitable[Any]],
        names: Callable[[str | None], dict[str, str]],
    ) -> None:
        self._run = run
        self._call = call
        self._names = names

    async def status(self, queue: str, job_id: str) -> Status:
        place, ending = await self._run("status", queue, GROUP, job_id)
        if place:
            return _PLACES[place]
        return cast(Status, decode_ending(ending).status) if ending else "unknown"

    async def queues(self) -> list[str]:
        names = await self._call("SMEMBERS", self._names(None)["queues"])
        return sorted(name.decode() for name in names)

    async def queue(self, queue: str) -> QueueState:
        entries, running, scheduled, dead, paused, consumers, counters = await self._run("queue", queue, GROUP)
        totals = dict.fromkeys(_TOTALS, 0)
        totals.update({k.decode(): int(v) for k, v in zip(counters[::2], counters[1::2], strict=True)})
        return QueueState(queue, entries - running, running, scheduled, dead, bool(paused), consumers, totals)

    async def dead_letters(self, queue: str, *, after: str = "", limit: int = 100) -> list[DeadLetter]:
        start = f"({after}" if after else "-"
        found = await self._call("XRANGE", self._names(queue)["dead"], start, "+", "COUNT", limit)
        return [_dead_letter(queue, entry, fields) for entry, fields in found]

    async def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None:
        names = self._names(queue)
        at = await self._call("HGET", names["index"], job_id)
        if not at or not at.startswith(b"d"):
            return None
        found = await self._call("XRANGE", names["dead"], at[1:], at[1:])
        return _dead_letter(queue, *found[0]) if found else None

    async def workers(self) -> list[WorkerInfo]:
        return sorted((_decode_worker(raw) for raw in await self._run("workers", None)), key=lambda w: w.started)


def _dead_letter(queue: str, entry: bytes, fields: list[bytes]) -> DeadLetter:
    stored = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        letter = decode_letter(stored[b"m"])
    except (KeyError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        letter = Letter("malformed", ErrorNote(type(error).__name__, f"the dead letter itself is unreadable: {error}"), 0, 0, 0)
    return DeadLetter(
        id=stored.get(b"i", b"").decode("utf-8", "replace"),
        task=stored.get(b"t", b"").decode("utf-8", "replace"),
        queue=queue,
        letter=letter,
        died_at=int(stored.get(b"a", b"0")) / 1000,
        body=stored.get(b"d", b""),
        cursor=entry.decode(),
    )
