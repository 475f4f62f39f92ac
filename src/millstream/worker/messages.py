"""Messages between a supervisor and its child processes: one line of JSON each, over a socket pair."""

from __future__ import annotations

import asyncio
import socket

import msgspec

from millstream.model.address import Address, read_address, write_address
from millstream.reporting.problem import During
from millstream.worker.scaling.metrics import Metrics

LINE_LIMIT = 1 << 26
"""Maximum bytes of a line. Messages about thousands of addresses are far shorter, and both ends are trusted."""


class Orders(msgspec.Struct, frozen=True):
    """The instructions for a child process. Passed in an environment variable (``roles``)."""

    app: str
    """The app, as ``module:attribute``."""
    queues: list[str]
    """Addresses to serve. Empty: all addresses of the app."""
    concurrency: int
    threads: int
    burst: bool
    fd: int = -1
    """The child's end of the socket pair."""
    stacks_fd: int = -1
    """File descriptor to which the child dumps its stacks; -1 means standard error."""
    suspects_only: bool = False
    """A spare process: it runs suspects, each alone, and ends."""
    supervisor: str = ""
    """The supervisor's id."""
    strategy: str = ""
    """The user's scaling strategy as ``module:attribute``. Empty if the worker does not use one."""
    url: str = ""
    """URL of the server. Empty: the URL of the app."""
    grace: float | None = None
    """Grace period in seconds. None: the app's setting."""
    log_level: str = "info"
    factory: bool = False
    """``app`` names a function that returns the app."""
    max_jobs: int = 0
    """Number of jobs after which the process is replaced; 0 means never."""
    max_memory: int = 0
    """Resident bytes above which the process is replaced; 0 means never."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """To the supervisor: the child has imported the app and connected to its server.

    Contains everything that the supervisor, which never imports user code, must know.
    """

    url: str
    namespace: str
    id_ttl: float
    grace: float
    longest_timeout: float
    """Longest timeout of a job in seconds. 0: a job may run without a limit, so a blocked loop does not prove a hang."""
    queues: list[Address]
    tasks: list[str]
    at_most_once: list[str]
    """Tasks, aliases and addresses of groups whose messages must never start a second time."""
    observed: bool = False
    """Whether the app has observers, to which this child can pass the supervisor's problems."""
    broadcasts: list[str] = []
    slots: dict[str, int] = {}
    """Number of jobs that one process runs at the same time, by address."""
    at_once: int = 0
    """Number of jobs of all addresses together that one process runs at the same time; 0 if unknown."""
    consumers: dict[str, tuple[int, int]] = {}
    """Minimum and maximum number of processes over all workers, by address, where declared."""
    fleeting: bool = False
    """Some handlers run messages that no lease covers. So a child without leased messages may have died because of one."""


class Keep(msgspec.Struct, tag=True, frozen=True):
    """To the supervisor: renew this lease from now on."""

    queue: Address
    consumer: str
    lease: float


class Drop(msgspec.Struct, tag=True, frozen=True):
    """To the supervisor: stop renewing this lease, because it was given up."""

    queue: Address
    consumer: str


class Beat(msgspec.Struct, tag=True, frozen=True):
    """To the supervisor: the child's event loop is responsive."""

    held: int = 0
    """Number of messages that the child holds: running, buffered or unsettled."""
    totals: dict[str, int] = {}
    """Number of settled outcomes."""
    interrupted: int = 0
    """Number of handlers that the shutdown interrupted. Sent before the lifespan is left, which may take long or be killed."""
    memory: int = 0
    """Resident bytes of the child, if they are measured."""


class Bye(msgspec.Struct, tag=True, frozen=True):
    """To the supervisor: the child has stopped, with this summary."""

    totals: dict[str, int]
    interrupted: int
    abandoned: int
    error: str = ""
    """The first error, as text."""


class Retire(msgspec.Struct, tag=True, frozen=True):
    """To the child: exit if you hold no messages now, otherwise refuse."""

    until: float
    """Time of the machine's monotonic clock after which the request is void."""


class Drain(msgspec.Struct, tag=True, frozen=True):
    """To the child: another process has replaced you. Stop claiming, let running jobs end, and exit."""


class Retiring(msgspec.Struct, tag=True, frozen=True):
    """To the supervisor: the child holds no messages, claims nothing more, and exits."""


class Busy(msgspec.Struct, tag=True, frozen=True):
    """To the supervisor: the child refuses to retire, because it holds this number of messages."""

    held: int


class Weigh(msgspec.Struct, tag=True, frozen=True):
    """To the child: ask the user's scaling strategy for the number of processes."""

    number: int
    metrics: Metrics


class Weighed(msgspec.Struct, tag=True, frozen=True):
    """To the supervisor: the strategy's answer, or its error."""

    number: int
    wanted: int = 0
    error: str = ""


class Longer(msgspec.Struct, tag=True, frozen=True):
    """To the supervisor: a job starts whose timeout exceeds ``longest_timeout`` and replaces it from now on."""

    timeout: float


class Suspects(msgspec.Struct, tag=True, frozen=True):
    """To the supervisor: a queue has jobs that must run alone."""

    queue: Address


class Ready(msgspec.Struct, tag=True, frozen=True):
    """To the child: the supervisor now renews your leases."""


class Trouble(msgspec.Struct, tag=True, frozen=True):
    """To the child, for its observers: a problem of the supervisor."""

    during: During
    error_type: str
    message: str
    at: float
    address: str | None = None
    crash: bool = False
    streak: int = 1
    missed: int = 0


Word = (
    Hello | Keep | Drop | Beat | Bye | Longer | Suspects | Ready | Trouble | Drain | Retire | Retiring | Busy | Weigh | Weighed
)
_decoder = msgspec.json.Decoder(Word, dec_hook=read_address)
_encoder = msgspec.json.Encoder(enc_hook=write_address)


def say(writer: asyncio.StreamWriter, word: Word) -> None:
    """Send one message. A closed connection is noticed by the reading end, not here."""
    if not writer.is_closing():
        writer.write(_encoder.encode(word) + b"\n")


async def hear(reader: asyncio.StreamReader) -> Word | None:
    """Return the next message, or None if the other end is closed."""
    try:
        line = await reader.readline()
    except (ConnectionError, OSError):
        return None
    return _decoder.decode(line) if line.endswith(b"\n") else None


async def streams(end: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return asyncio streams for one end of the socket pair."""
    end.setblocking(False)
    return await asyncio.open_connection(sock=end, limit=LINE_LIMIT)


def encode_orders(orders: Orders) -> str:
    """Encode orders as text for an environment variable."""
    return _encoder.encode(orders).decode()


def decode_orders(text: str) -> Orders:
    """Decode orders from the text of an environment variable."""
    return msgspec.json.decode(text, type=Orders)
