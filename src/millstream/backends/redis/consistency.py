"""ConsistencyCheck: check whether the data of a queue or group is consistent and whether consumers look after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from millstream.backends.redis.keys import GROUP, RELEASED, SUSPECTS
from millstream.broker import Finding
from millstream.model.address import Address

SCAN_COUNT = 200
"""Fields of the index checked per call."""

SCAN_LIMIT = 200_000
"""Maximum fields of the index that are checked if the sums do not agree."""

IN_LOG = 2
"""The script returns a bit set of the consumer groups that exist. This bit is the consumer group in the log."""

EXAMPLES = 3
"""Maximum ids listed in a finding."""


class ConsistencyCheck:
    """Checks the sums, leases and pending lists of one queue or group."""

    def __init__(
        self, queue: Address, run: Callable[..., Awaitable[Any]], names: Callable[[Address | None], dict[str, str]]
    ) -> None:
        self._queue = queue
        self._run = run
        self._names = names
        self._check = f"queue {queue}" if queue.is_queue else f"group {queue.group} of topic {queue.log}"
        self._where = "" if queue.is_queue else f" --queue '{queue}'"

    async def audit(self) -> tuple[list[Finding], int]:
        """Return inconsistencies and the number of live consumers."""
        counts = await self._run("consistency", self._queue, GROUP)
        entries, indexed, held, due, dead, _paused, there, alive, lapsed, names, holding, leased = counts
        consumers = [(n.decode(), h, bool(has_lease)) for n, h, has_lease in zip(names, holding, leased, strict=True)]
        found = [
            *await self._compare(entries, indexed, held, due, dead),
            *self._stranded(consumers, {name.decode() for name in lapsed}),
        ]
        if not self._queue.is_queue and there < IN_LOG:
            way_out = "the next claim of a worker recreates it, after the last recorded entry"
            found.append(self._finding("warn", "its position in the log is missing", way_out))
        if self._queue.is_queue and entries and alive and not there:
            found.append(self._finding("warn", "its consumer group is missing", "the next claim of a worker recreates it"))
        return found, alive

    async def _compare(self, entries: int, indexed: int, held: int, due: int, dead: int) -> list[Finding]:
        """Check that every job is stored in exactly one place and is in the index."""
        if indexed == entries + held + dead and held == due:
            return []
        found: list[Finding] = []
        gone, stuck, scanned = await self._check_index()
        part = "" if scanned < SCAN_LIMIT else f" among the first {scanned:,} in the index"
        if gone:
            way_out = "another program trims or deletes Millstream's keys: find it. The next claims of a worker " + (
                "make each of them a dead letter" if self._queue.is_queue else "remove them from the index"
            )
            text = f"{len(gone):,} {self._jobs(len(gone))} in the index {_are(len(gone))} missing{part}: {_examples(gone)}"
            found.append(self._finding("bad", text, way_out))
        if stuck:
            way_out = f"the next claims of a worker make them ready. Without a worker: millstream jobs retry ID{self._where}"
            text = f"{len(stuck):,} scheduled {self._jobs(len(stuck))} without a due time{part}: {_examples(stuck)}"
            found.append(self._finding("bad", text, way_out))
        foreign = entries + held + dead - (indexed - len(gone))
        # In a group, a redelivered event may replace an older retry in the index, so this check applies only to queues.
        if foreign > 0 and not part and self._queue.is_queue:
            way_out = "another program writes to Millstream's stream. Entries that are not jobs become dead letters (malformed)"
            text = f"{foreign:,} {'entries' if foreign > 1 else 'entry'} missing in the index"
            found.append(self._finding("warn", text, way_out))
        return found

    async def _check_index(self) -> tuple[list[str], list[str], int]:
        """Return ids in the index whose job is gone, ids of scheduled jobs without a due time, and the number of checked
        fields if SCAN_LIMIT was reached (otherwise 0)."""
        gone: list[str] = []
        stuck: list[str] = []
        cursor, scanned = b"0", 0
        while scanned < SCAN_LIMIT:
            cursor, more_gone, more_stuck = await self._run("index_check", self._queue, cursor, SCAN_COUNT)
            gone += [job_id.decode("utf-8", "replace") for job_id in more_gone]
            stuck += [job_id.decode("utf-8", "replace") for job_id in more_stuck]
            scanned += SCAN_COUNT
            if cursor == b"0":
                return gone, stuck, 0
        return gone, stuck, scanned

    def _stranded(self, consumers: list[tuple[str, int, bool]], lapsed: set[str]) -> list[Finding]:
        """Check that every message held by a consumer will be settled by that consumer, or taken over because it lapsed."""
        found: list[Finding] = []
        for name, holds, has_lease in consumers:
            if holds and not has_lease and name not in lapsed:
                way_out = "the next claims of a worker find them and take them over"
                text = f"{holds:,} {self._jobs(holds)} held by consumer {name}, which has no lease and is not marked as lapsed"
                found.append(self._finding("bad", text, way_out))
        waiting = sum(holds for name, holds, _ in consumers if name in lapsed - {RELEASED, SUSPECTS})
        if waiting:
            way_out = "the next claim of a worker takes them over"
            found.append(self._finding("warn", f"{waiting:,} {self._jobs(waiting)} still held by lapsed consumers", way_out))
        suspects = sum(holds for name, holds, _ in consumers if name == SUSPECTS)
        if suspects:
            way_out = "worker processes crashed while running them, so each runs alone. millstream jobs ls lists them as ready"
            found.append(self._finding("warn", f"{suspects:,} {self._jobs(suspects)} {_are(suspects)} suspect", way_out))
        return found

    def _jobs(self, count: int) -> str:
        return ("job" if self._queue.is_queue else "event") + ("" if count == 1 else "s")

    def _finding(self, health: Any, found: str, way_out: str) -> Finding:
        return Finding(self._check, health, found, way_out)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _examples(ids: list[str]) -> str:
    return ", ".join(ids[:EXAMPLES]) + (", …" if len(ids) > EXAMPLES else "")
