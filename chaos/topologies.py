"""Several real servers together: a cluster with replicas, and a primary behind sentinels. They listen on loopback."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from chaos.server import START_SECONDS, Engine, NotHere, PrivateServer, binary, free_ports

SLOTS = 16_384

NODE_TIMEOUT_MS = 1_000
"""Milliseconds without an answer after which the others declare a node of a cluster, or a primary behind sentinels, dead."""

SERVICE = "main"
"""The name under which the sentinels know the primary."""

_TCP = ("--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")


class Servers(ABC):
    """Several processes that are started and ended together, as a context manager."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._clean_up()

    @abstractmethod
    def _start(self) -> None:
        """Start the processes, and wait until they are ready."""

    @abstractmethod
    def _clean_up(self) -> None:
        """End the processes, and delete their files."""


class Cluster(Servers):
    """Primaries that share the slots evenly, each with the same number of replicas. Use it as a context manager."""

    def __init__(self, engine: Engine = "valkey", primaries: int = 3, replicas: int = 0, *options: str) -> None:
        self._engine: Engine = engine
        self._options = options
        self._primaries = primaries
        self._replicas = replicas
        self.nodes: list[PrivateServer] = []
        self._buses: dict[PrivateServer, int] = {}
        """The ports on which the nodes talk to each other."""

    def _clean_up(self) -> None:
        for node in self.nodes:
            node.clean_up()

    @property
    def url(self) -> str:
        """The URL with every node as a seed."""
        return self.url_of(*self.nodes)

    def url_of(self, *seeds: PrivateServer) -> str:
        """Return the URL with only these seeds."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in seeds)}"

    def primary_of(self, key: str) -> PrivateServer:
        """Return the node that serves a key, as the living nodes see it."""
        return self.server_of(key_slot(key.encode()))

    def server_of(self, slot: int) -> PrivateServer:
        """Return the node that serves a slot, as the living nodes see it."""
        for first, last, place, *_ in self._ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return self.at(place[1])
        raise RuntimeError(f"no node serves slot {slot}")

    @property
    def primaries(self) -> list[PrivateServer]:
        """The running nodes that are not replicas."""
        return [node for node in self.nodes if node.running and not _follows(node)]

    def at(self, port: int) -> PrivateServer:
        """Return the node that listens on this port."""
        return next(node for node in self.nodes if node.port == port)

    def add_node(self) -> PrivateServer:
        """Start one more node without slots, and wait until all nodes know it."""
        node = self._make()
        node.start()
        self._meet(node)
        self.nodes.append(node)
        self.until_agreed()
        return node

    def until_agreed(self) -> None:
        """Wait until all running nodes know each other and the cluster is up."""
        running = [node for node in self.nodes if node.running]
        _until("all nodes to agree", lambda: all(self._is_up(node) for node in running))

    def replicas_of(self, primary: PrivateServer) -> list[PrivateServer]:
        """Return the replicas of a primary."""
        return [node for node in self.nodes if node.running and _follows(node) == primary.port]

    def _start(self) -> None:
        primaries = [self._make() for _ in range(self._primaries)]
        replicas = [self._make() for _ in range(self._primaries * self._replicas)]
        self.nodes = [*primaries, *replicas]
        for number, node in enumerate(self.nodes, 1):
            node.start()
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number)  # otherwise the nodes must first agree on an order
        share = SLOTS / self._primaries
        for number, node in enumerate(primaries):
            node.call("CLUSTER", "ADDSLOTSRANGE", round(number * share), round((number + 1) * share) - 1)
        for node in self.nodes[1:]:
            self._meet(node)
        self.until_agreed()
        for number, node in enumerate(replicas):
            node.call("CLUSTER", "REPLICATE", node_id(primaries[number % self._primaries]))
        _until("the replicas to be in sync", lambda: all(_in_sync(node) for node in replicas))
        self.until_agreed()

    def _make(self) -> PrivateServer:
        port, bus = free_ports(2)
        enabled = ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", str(NODE_TIMEOUT_MS))
        node = PrivateServer(self._engine, "everysec", *_TCP, *enabled, *self._options, port=port)
        self._buses[node] = bus
        return node

    def _meet(self, node: PrivateServer) -> None:
        node.call("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, self._buses[self.nodes[0]])

    def _is_up(self, node: PrivateServer) -> bool:
        rows = [row.split(" ") for row in _text(node.call("CLUSTER", "NODES")).splitlines()]
        known = [row for row in rows if not {"fail", "fail?", "handshake", "noaddr"} & set(row[2].split(","))]
        up = "cluster_state:ok" in _text(node.call("CLUSTER", "INFO"))
        return up and len(known) >= len([each for each in self.nodes if each.running])

    def _ask(self, *command: Any) -> Any:
        for node in self.nodes:
            if node.running:
                with contextlib.suppress(RedisError):
                    return node.call(*command)
        raise RuntimeError("no node answers")


class Sentinels(Servers):
    """A primary with replicas, and sentinels that watch them. Use it as a context manager."""

    def __init__(
        self,
        engine: Engine = "valkey",
        replicas: int = 1,
        sentinels: int = 3,
        *options: str,
        password: str = "",
        sentinel_password: str = "",
    ) -> None:
        self._engine: Engine = engine
        self._options = (*options, *(("--requirepass", password, "--masterauth", password) if password else ()))
        self._replicas = replicas
        self._count = sentinels
        self._password = password
        self._sentinel_password = sentinel_password
        self.servers: list[PrivateServer] = []
        self.sentinels: list[Sentinel] = []

    def _clean_up(self) -> None:
        for sentinel in self.sentinels:
            sentinel.clean_up()
        for server in self.servers:
            server.clean_up()

    @property
    def url(self) -> str:
        """The URL with every sentinel."""
        return self.url_of(*self.sentinels)

    def url_of(self, *sentinels: Sentinel) -> str:
        """Return the URL with only these sentinels."""
        login = f":{self._password}@" if self._password else ""
        query = f"?sentinel_password={self._sentinel_password}" if self._sentinel_password else ""
        return f"redis+sentinel://{login}{','.join(f'127.0.0.1:{each.port}' for each in sentinels)}/{SERVICE}{query}"

    @property
    def primary(self) -> PrivateServer:
        """The server that the sentinels name as the primary."""
        alive = next(each for each in self.sentinels if each.running)
        port = int(alive.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])
        return next(server for server in self.servers if server.port == port)

    def fail_over(self, *how: str) -> None:
        """Make the sentinels promote a replica, and wait until they name it as the primary."""
        before, alive = self.primary, next(each for each in self.sentinels if each.running)
        _until("the replicas to be known", lambda: self._started(alive, *how))
        self.until_changed(before)

    def until_changed(self, before: PrivateServer) -> None:
        """Wait until the sentinels name another primary."""
        _until("another primary", lambda: self.primary is not before)

    def _started(self, sentinel: Sentinel, *how: str) -> bool:
        try:
            sentinel.call("SENTINEL", "FAILOVER", SERVICE, *how)
        except RedisError as error:
            if "NOGOODSLAVE" in str(error) or "INPROG" in str(error):
                return False
            raise
        return True

    def _start(self) -> None:
        ports = free_ports(1 + self._replicas)
        for port in ports:
            follows = ("--replicaof", "127.0.0.1", str(ports[0])) if port != ports[0] else ()
            server = PrivateServer(
                self._engine, "everysec", *_TCP, *follows, *self._options, port=port, password=self._password
            )
            self.servers.append(server)
            server.start()
        _until("the replicas to be in sync", lambda: all(_in_sync(each) for each in self.servers[1:]))
        for _ in range(self._count):
            quorum = self._count // 2 + 1
            self.sentinels.append(Sentinel(self._engine, ports[0], quorum, self._password, self._sentinel_password))
        for each in self.sentinels:
            each.start()
        _until("the sentinels to know each other", lambda: all(self._knows_all(each) for each in self.sentinels))

    def _knows_all(self, sentinel: Sentinel) -> bool:
        told = [_text(each) for each in sentinel.call("SENTINEL", "MASTER", SERVICE)]
        state = dict(zip(told[::2], told[1::2], strict=True))
        return (int(state["num-other-sentinels"]), int(state["num-slaves"])) == (self._count - 1, self._replicas)


class Sentinel:
    """One sentinel process."""

    def __init__(self, engine: Engine, watches: int, quorum: int, server_password: str = "", password: str = "") -> None:
        program = binary(engine)
        if program is None:
            raise NotHere(f"no {engine} server is installed here")
        self.folder = tempfile.mkdtemp(prefix="chaos-")
        (self.port,) = free_ports(1)
        settings = Path(self.folder, "sentinel.conf")
        settings.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {watches} {quorum}\n"
            f"sentinel down-after-milliseconds {SERVICE} {NODE_TIMEOUT_MS}\nsentinel failover-timeout {SERVICE} 3000\n"
            + (f"sentinel auth-pass {SERVICE} {server_password}\n" if server_password else "")
            + (f"requirepass {password}\nsentinel sentinel-pass {password}\n" if password else "")
        )
        self._password = password
        self._log = Path(self.folder, "log")
        self._command = [program, str(settings), "--sentinel"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        _until(f"{self._command} to answer", self._answers)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def call(self, *command: Any) -> Any:
        """Send one raw command."""
        with redis.Redis(port=self.port, password=self._password or None, protocol=2) as client:
            return client.execute_command(*command)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]

    def clean_up(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            return bool(self.call("PING"))
        except (RedisError, OSError):
            return False


def node_id(node: PrivateServer) -> str:
    """Return the id of a node of a cluster."""
    return _text(node.call("CLUSTER", "MYID"))


def _follows(node: PrivateServer) -> int:
    """Return the port of the primary that a node replicates; 0 if it is a primary itself."""
    return int(node.call("INFO", "replication").get("master_port", 0))


def _in_sync(replica: PrivateServer) -> bool:
    return bool(replica.call("INFO", "replication").get("master_link_status") == "up")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _until(what: str, happened: Callable[[], bool]) -> None:
    until = time.monotonic() + START_SECONDS
    while not happened():
        if time.monotonic() > until:
            raise RuntimeError(f"waited {START_SECONDS:g} s for {what}")
        time.sleep(0.02)
