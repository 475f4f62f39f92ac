"""Doctor: find problems, and possible future problems, of a server and its queues. It only reads."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from millstream.backends.redis.connect import parse_info, server_name
from millstream.backends.redis.contents import Contents
from millstream.backends.redis.topology import Node
from millstream.broker import Finding, Inspector
from millstream.broker.inspector import Health
from millstream.errors import BrokerError, BrokerRefused, BrokerUnavailable
from millstream.model.address import Address

PINGS = 100
"""Number of round trips for measuring latency."""

SLOW_SECONDS = 0.02
VERY_SLOW_SECONDS = 0.5
"""Limits for the 99th percentile of a round trip. The first is worth a warning; at the second, leases may lapse."""

CLOCK_SECONDS = 1.0
"""A larger difference between the clocks is worth a warning."""

FULL, VERY_FULL = 0.8, 0.95
"""Limits for the fraction of memory or connections in use. The first is a warning, the second is bad."""

Run = Callable[..., Awaitable[Any]]


class Doctor:
    """Examines through the broker's connections."""

    def __init__(
        self, inspector: Inspector, run: Run, names: Callable[[Address | None], dict[str, str]], nodes: Sequence[Node]
    ) -> None:
        self._inspector = inspector
        self._run = run
        self._names = names
        self._nodes = nodes

    async def examine(self) -> list[Finding]:
        """Return all findings, those about the servers first, as far as the user's rights allow."""
        findings: list[Finding] = []
        for node in self._nodes:
            findings += await (ServerCheck(node).examine() if len(self._nodes) == 1 else self._of_cluster(node))
        try:
            contents = Contents(self._inspector, self._run, self._names)
            return [*findings, await self._workers(), *await contents.examine()]
        except BrokerError as error:
            return [*findings, Finding("queues", "bad", f"cannot be read: {error}", "see the findings about the server")]

    async def _of_cluster(self, node: Node) -> list[Finding]:
        """Return the findings about one node of a cluster, with its name. If it cannot be reached, that is the only one."""
        try:
            found = await ServerCheck(node).examine()
        except BrokerUnavailable as error:
            way_out = "jobs of its queues are neither accepted nor settled until the node is back or a replica replaces it"
            found = [Finding("server", "bad", str(error), way_out)]
        return [msgspec.structs.replace(each, check=f"{each.check} {node.name}") for each in found]

    async def _workers(self) -> Finding:
        workers = await self._inspector.workers()
        versions = sorted({worker.version for worker in workers})
        if not workers:
            return Finding("workers", "warn", "none registered", "start one: millstream worker module:app")
        found = f"{len(workers)} registered, version {', '.join(versions)}"
        if len(versions) > 1:
            return Finding("workers", "warn", found, "a rolling deploy is in progress, or was not finished")
        return Finding("workers", "ok", found)


class ServerCheck:
    """Examines one server."""

    def __init__(self, node: Node) -> None:
        self._call = node.commands.call

    async def examine(self) -> list[Finding]:
        """Return the findings about the server, as far as the user's rights allow."""
        try:
            info = parse_info(await self._call("INFO"))
        except BrokerRefused:
            found = "this user may not run INFO: version, persistence, eviction, memory and connections are not checked"
            return [Finding("server", "warn", found, "grant +info to the user"), await self._latency(), await self._clock()]
        config = await self._config("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy", "maxclients")
        return [
            server(info, await self._refusal()),
            persistence(info, config),
            eviction(info, config),
            memory(info, config),
            connections(info, config),
            await self._latency(),
            await self._clock(),
        ]

    async def _config(self, *names: str) -> dict[str, str]:
        """Return settings of the server. Empty if the user may not read them, as with many hosting providers."""
        settings: dict[str, str] = {}
        try:
            for name in names:
                answer = await self._call("CONFIG", "GET", name)
                settings |= {k.decode(): v.decode() for k, v in zip(answer[::2], answer[1::2], strict=True)}
        except BrokerError:
            return {}
        return settings

    async def _refusal(self) -> str:
        """Return why the server refuses writes, or an empty string. A server that cannot write to its disk also refuses
        PING."""
        try:
            await self._call("PING")
        except BrokerUnavailable as error:
            return str(error)
        except BrokerRefused:
            pass  # This user may not run PING.
        return ""

    async def _latency(self) -> Finding:
        took: list[float] = []
        for _ in range(PINGS):
            began = time.perf_counter()
            await self._call("TIME")  # Not PING, which a server that cannot write to its disk refuses.
            took.append(time.perf_counter() - began)
        took.sort()
        p50, p99 = took[PINGS // 2], took[PINGS * 99 // 100 - 1]
        found = f"p50 {p50 * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms over {PINGS} round trips from this machine"
        if p99 >= VERY_SLOW_SECONDS:
            return Finding("latency", "bad", found, "leases may lapse: look for slow commands (SLOWLOG GET)")
        if p99 >= SLOW_SECONDS:
            return Finding("latency", "warn", found, "run workers near the server; look for slow commands (SLOWLOG GET)")
        return Finding("latency", "ok", found)

    async def _clock(self) -> Finding:
        began = time.time()
        seconds, micros = await self._call("TIME")
        here = (began + time.time()) / 2
        apart = int(seconds) + int(micros) / 1e6 - here
        found = f"the server's clock is {abs(apart):.3f} s {'ahead of' if apart > 0 else 'behind'} this machine's"
        if abs(apart) < CLOCK_SECONDS:
            return Finding("clock", "ok", found)
        way_out = "Millstream uses the server's clock, so at= and displayed times are off by this much: set up NTP on both"
        return Finding("clock", "warn", found, way_out)


# -- findings about the server, from INFO and CONFIG GET -------------------------------------------------------------------


def server(info: dict[str, str], refusal: str = "") -> Finding:
    """Return the server's version and whether it accepts writes."""
    found = f"{server_name(info)}, up {int(info.get('uptime_in_seconds', 0)):,} s"
    if refusal:
        return Finding("server", "bad", f"{found}: {refusal}", "no job is accepted or settled until this is fixed")
    if info.get("role", "master") != "master":
        return Finding("server", "bad", f"{found}, a read-only replica", "connect to the primary")
    return Finding("server", "ok", found)


def persistence(info: dict[str, str], config: dict[str, str]) -> Finding:
    """Return what a restart of the server would lose."""
    if info.get("aof_enabled") == "1":
        if info.get("aof_last_write_status", "ok") != "ok":
            way_out = "the server refuses writes: check its log and its disk"
            return Finding("persistence", "bad", "the append-only file could not be written", way_out)
        fsync = config.get("appendfsync", "")
        found = "append-only file" + (f", appendfsync {fsync}" if fsync else "")
        if fsync == "no":
            way_out = "a crash of the machine may lose the last 30 s: set appendfsync to everysec or always"
            return Finding("persistence", "warn", found, way_out)
        return Finding("persistence", "ok", found)
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        way_out = "the server may refuse writes: check its log and its disk"
        return Finding("persistence", "bad", "the last snapshot could not be written", way_out)
    if config and not config.get("save"):
        way_out = "a restart of the server loses every job: set appendonly to yes"
        return Finding("persistence", "warn", "none: neither append-only file nor snapshots", way_out)
    way_out = "a crash loses all changes since the last snapshot: set appendonly to yes"
    age = max(0, int(time.time()) - int(info.get("rdb_last_save_time", 0)))
    return Finding("persistence", "warn", f"snapshots only, the last one {age:,} s ago", way_out)


def eviction(info: dict[str, str], config: dict[str, str]) -> Finding:
    """Return whether a full server deletes jobs."""
    policy = info.get("maxmemory_policy") or config.get("maxmemory-policy") or "unknown"
    evicted = int(info.get("evicted_keys", 0))
    found = f"maxmemory-policy {policy}" + (f", evicted keys: {evicted:,}" if evicted else "")
    if policy == "noeviction":
        return Finding("eviction", "ok", found)
    limited = int(info.get("maxmemory", 0)) > 0
    way_out = "a full server deletes jobs: set maxmemory-policy to noeviction"
    return Finding("eviction", "bad" if limited or evicted else "warn", found, way_out)


def memory(info: dict[str, str], config: dict[str, str]) -> Finding:
    """Return how much of the memory is used."""
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0) or config.get("maxmemory", 0))
    whose = "maxmemory"
    if not limit:
        limit, whose = int(info.get("total_system_memory", 0)), "the machine's memory; maxmemory is not set"
    found = f"{_megabytes(used)} used of {_megabytes(limit)} ({whose})" if limit else f"{_megabytes(used)} used"
    health = _fullness(used, limit)
    way_out = "a full server refuses new jobs: raise maxmemory, or start workers to empty the queues"
    return Finding("memory", health, found, "" if health == "ok" else way_out)


def connections(info: dict[str, str], config: dict[str, str]) -> Finding:
    """Return how many of the connections are used."""
    used, limit = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0) or config.get("maxclients", 0))
    refused = int(info.get("rejected_connections", 0))
    found = f"{used:,} of {limit:,}" + (f", {refused:,} refused since the server started" if refused else "")
    health = _fullness(used, limit)
    if refused and health == "ok":
        health = "warn"
    return Finding("connections", health, found, "" if health == "ok" else "raise maxclients")


def _fullness(used: int, limit: int) -> Health:
    part = used / limit if limit else 0.0
    return "bad" if part >= VERY_FULL else "warn" if part >= FULL else "ok"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
