"""ConsistencyCheck: whether what a queue or group holds adds up, and whether someone looks after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from millstream.backends.redis.keys import GROUP, RELEASED, SUSPECTS
from millstream.broker import Finding
from millstream.model.address import Address

SCAN_COUNT = 200
"""Fields of the index compared per call."""

SCAN_LIMIT = 200_000
"""Fields of the index compared at most, where the sums do not agree."""

IN_LOG = 2
"""Of the consumer groups that are there: that in the log."""

EXAMPLES = 3
"""Ids named in a finding."""


class ConsistencyCheck:
    """One queue's, or one group's, sums, leases and pending lists."""

    def __init__(
        self, queue: Address, run: Callable[..., Awaitable[Any]], names: Callable[[Address | None], dict[str, str]]
    ) -> None:
        self._queue = queue
        self._run = run
        self._names = names
        self._check = f"queue {queue}" if queue.is_queue else f"group {queue.group} of topic {queue.log}"
        self._where = "" if queue.is_queue else f" --queue '{queue}'"

    async def audit(self) -> tuple[list[Finding], int]:
        """What is inconsistent, and how many consumers are alive."""
        counts = await self._run("consistency", self._queue, GROUP)
        entries, indexed, held, due, dead, _paused, there, alive, lapsed, names, holding, leased = counts
        consumers = [(n.decode(), h, bool(has_lease)) for n, h, has_lease in zip(names, holding, leased, strict=True)]
        found = [
            *await self._compare(entries, indexed, held, due, dead),
            *self._stranded(consumers, {name.decode() for name in lapsed}),
        ]
        if not self._queue.is_queue and there < IN_LOG:
            way_out = "the next claim of a worker makes it again, after the last entry that was noted"
            found.append(self._finding("warn", "its place in the log is missing", way_out))
        if self._queue.is_queue and entries and alive and not there:
            found.append(self._finding("warn", "its consumer group is missing", "the next claim of a worker makes it again"))
        return found, alive

    async def _compare(self, entries: int, indexed: int, held: int, due: int, dead: int) -> list[Finding]:
        """Every job is in one place, and the index names it."""
        if indexed == entries + held + dead and held == due:
            return []
        found: list[Finding] = []
        gone, stuck, scanned = await self._check_index()
        part = "" if scanned < SCAN_LIMIT else f" among the first {scanned:,} of the index"
        if gone:
            way_out = f"{self._jobs(2)} were lost: find the program that trims or deletes our keys. A worker's next claims " + (
                "make each a dead letter" if self._queue.is_queue else "remove them from the index"
            )
            text = f"{len(gone):,} {self._jobs(len(gone))} of the index {_are(len(gone))} gone{part}: {_examples(gone)}"
            found.append(self._finding("bad", text, way_out))
        if stuck:
            way_out = f"a worker's next claims make each ready; without one: millstream jobs retry ID{self._where}"
            text = f"{len(stuck):,} {self._jobs(len(stuck))} held and never due{part}: {_examples(stuck)}"
            found.append(self._finding("bad", text, way_out))
        foreign = entries + held + dead - (indexed - len(gone))
        # in a group one that is given again may take the place of an older retry, which the index then does not know
        if foreign > 0 and not part and self._queue.is_queue:
            way_out = "another program writes to our stream; what is no job of ours will be a dead letter (malformed)"
            text = f"{foreign:,} {'entries' if foreign > 1 else 'entry'} that the index does not know"
            found.append(self._finding("warn", text, way_out))
        return found

    async def _check_index(self) -> tuple[list[str], list[str], int]:
        """Ids in the index whose job is gone, those that are held but never due, and how many were compared."""
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
        """What a consumer holds is settled by it, or taken over once its name is among the lapsed."""
        found: list[Finding] = []
        for name, holds, has_lease in consumers:
            if holds and not has_lease and name not in lapsed:
                way_out = "a worker's next claims find and take them over"
                text = f"{holds:,} {self._jobs(holds)} held by {name}, which has no lease and is not known to have lapsed"
                found.append(self._finding("bad", text, way_out))
        waiting = sum(holds for name, holds, _ in consumers if name in lapsed - {RELEASED, SUSPECTS})
        if waiting:
            way_out = "the next claim of a worker takes them over"
            found.append(
                self._finding("warn", f"{waiting:,} {self._jobs(waiting)} left behind by consumers that lapsed", way_out)
            )
        suspects = sum(holds for name, holds, _ in consumers if name == SUSPECTS)
        if suspects:
            way_out = "they crashed their workers before, and run one at a time: millstream jobs ls shows them as ready"
            found.append(self._finding("warn", f"{suspects:,} {self._jobs(suspects)} {_are(suspects)} to run alone", way_out))
        return found

    def _jobs(self, count: int) -> str:
        return ("job" if self._queue.is_queue else "event") + ("" if count == 1 else "s")

    def _finding(self, health: Any, found: str, way_out: str) -> Finding:
        return Finding(self._check, health, found, way_out)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _examples(ids: list[str]) -> str:
    return ", ".join(ids[:EXAMPLES]) + (", …" if len(ids) > EXAMPLES else "")
