"""The owner of each shard, read from the server repeatedly while a trial runs, in its own thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self, cast

import redis

from chaos.history import Fault
from chaos.server import Server
from millstream.backends.redis.keys import queue_keys
from millstream.model.address import Address

LOOK_SECONDS = 0.02

FOREVER = float("inf")

SCRIPT = "local all = {} for i, key in ipairs(KEYS) do all[i] = redis.call('ZRANGE', key, 0, -1) end return all"
"""Reads all leases of all shards and all members in one atomic step."""


class Look(NamedTuple):
    """One sample of the server's state."""

    at: float
    owners: tuple[tuple[str, ...], ...]
    """Per shard: the consumers with a lease, without those that run suspects alone and do not own the shard."""
    members: frozenset[int] = frozenset()
    """The processes that share the shards."""

    def shares(self) -> Counter[int]:
        """Return the number of shards per process."""
        return Counter(process_of(owner) for owners in self.owners for owner in owners)

    def is_even_over(self, pids: Iterable[int]) -> bool:
        """Return whether these processes own all shards, with at most one shard difference between them."""
        shares, pids = self.shares(), set(pids)
        one_each = all(len(owners) == 1 for owners in self.owners)
        return one_each and shares.keys() == pids and max(shares.values()) - min(shares.values()) <= 1


class Gap(NamedTuple):
    """A time in which a shard had no owner that could work."""

    shard: int
    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since


def process_of(consumer: str) -> int:
    """Return the pid in a consumer's name, ``<host>-<process>-<token>.<incarnation>``."""
    return int(consumer.rsplit("-", 2)[1])


class Ownership:
    """Samples the owners during the ``with`` block. A sample that the server does not answer is skipped."""

    def __init__(self, server: Server, namespace: str, address: Address, shards: int) -> None:
        self._server = server
        addresses = [address, *address.shards(shards)]
        self._keys = [queue_keys(namespace, each)["leases"] for each in addresses]
        self._members: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-ownership", daemon=True)
        self.looks: list[Look] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def now(self) -> Look:
        """Return the latest sample."""
        return self.looks[-1] if self.looks else Look(0.0, ())

    def _run(self) -> None:
        with redis.Redis(unix_socket_path=self._server.path) as client:
            while not self._over.wait(LOOK_SECONDS):
                with contextlib.suppress(redis.RedisError, OSError):
                    self._look(client)

    def _look(self, client: redis.Redis) -> None:
        said = client.execute_command("EVAL", SCRIPT, len(self._keys), *self._keys)  # pyright: ignore
        found = cast(list[list[bytes]], said)
        members, *shards = [[name.decode() for name in names] for names in found]
        self._members.update(members)
        owners = (tuple(name for name in names if name.rpartition(".")[0] in self._members) for names in shards)
        self.looks.append(Look(time.monotonic(), tuple(owners), frozenset(map(process_of, members))))

    # -- results -----------------------------------------------------------------------------------------------------------

    def doubles(self) -> list[str]:
        """Return a description of each sample in which a shard had two owners."""
        return [
            f"shard {shard} had {len(owners)} owners: {', '.join(owners)}"
            for look in self.looks
            for shard, owners in enumerate(look.owners)
            if len(owners) > 1
        ]

    def moves(self) -> int:
        """Return how often a shard moved from one process to another."""
        count, last = 0, dict[int, str]()
        for look in self.looks:
            for shard, owners in enumerate(look.owners):
                if owners and last.get(shard, owners[0]) != owners[0]:
                    count += 1
                if owners:
                    last[shard] = owners[0]
        return count

    def gaps(self, faults: Sequence[Fault] = ()) -> list[Gap]:
        """Return when shards had no owner that could work: no owner, or a killed or stopped one, even if its lease was still
        valid."""
        struck = [
            (pid, fault.began, FOREVER if fault.kills else fault.ended)
            for fault in faults
            if fault.kills or fault.fences
            for pid in fault.pids
        ]

        def struck_at(owner: str, at: float) -> float | None:
            return next((since for pid, since, until in struck if pid == process_of(owner) and since <= at <= until), None)

        found, since, able = list[Gap](), dict[int, float](), set[int]()
        for look in self.looks:
            for shard, owners in enumerate(look.owners):
                strikes = [struck_at(owner, look.at) for owner in owners]
                if None in strikes:
                    if shard in since and shard not in able:
                        found.append(Gap(shard, since[shard], look.at))
                    since[shard] = look.at
                    able.add(shard)
                elif shard in since:
                    since[shard] = max([since[shard], *(at for at in strikes if at is not None)])
                    able.discard(shard)
        return found
