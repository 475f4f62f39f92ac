"""What a supervisor and its children say to each other, a line of JSON each, over a socket pair."""

from __future__ import annotations

import asyncio
import socket

import msgspec

from millstream.model.address import Address, read_address, write_address
from millstream.reporting.problem import During
from millstream.worker.scaling.metrics import Metrics

LINE_LIMIT = 1 << 26
"""Bytes of a line: what is said of some thousand addresses is far less, and who speaks is one of us."""


class Orders(msgspec.Struct, frozen=True):
    """How a child was started; travels on its command line."""

    app: str
    """module:attribute"""
    queues: list[str]
    """Empty: all that the app can serve."""
    concurrency: int
    threads: int
    burst: bool
    fd: int = -1
    """The child's end of the socket pair."""
    stacks_fd: int = -1
    """Where the child dumps its stacks; -1: to its standard error."""
    suspects_only: bool = False
    """A spare child: runs what was running when others died, each job alone, and ends."""
    supervisor: str = ""
    """The id of whoever started it."""
    strategy: str = ""
    """module:attribute of the app's own strategy, if it scales by one."""
    url: str = ""
    """Where the queues are, instead of where the app says; empty: as the app says."""
    grace: float | None = None
    """Seconds, instead of what the app says; None: as the app says."""
    log_level: str = "info"
    factory: bool = False
    """``app`` names a function that makes the app."""
    max_jobs: int = 0
    """After how many jobs the process is replaced; 0: never."""
    max_memory: int = 0
    """Above how many bytes; 0: never."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """A child has imported the app and found its server: what the supervisor, which never imports user code, must know."""

    url: str
    namespace: str
    id_ttl: float
    grace: float
    longest_timeout: float
    """Seconds; 0: some job may run for ever, so a loop that does not turn proves nothing."""
    queues: list[Address]
    tasks: list[str]
    at_most_once: list[str]
    """Of these, and of their aliases: whose jobs must never start a second time. Also groups, by their addresses."""
    observed: bool = False
    """Whether the app has observers, whom this child can tell of the supervisor's problems."""
    broadcasts: list[str] = []
    slots: dict[str, int] = {}
    """How many jobs of each address one process runs at once."""
    at_once: int = 0
    """How many jobs of all of them together; 0: it has not said."""
    consumers: dict[str, tuple[int, int]] = {}
    """How many processes may serve an address, over all workers, where that is said."""
    fleeting: bool = False
    """Some handlers run what no lease holds: who dies with empty hands may have died of that."""


class Keep(msgspec.Struct, tag=True, frozen=True):
    """Renew this lease from now on."""

    queue: Address
    consumer: str
    lease: float


class Drop(msgspec.Struct, tag=True, frozen=True):
    """Renew it no more: it was given up."""

    queue: Address
    consumer: str


class Beat(msgspec.Struct, tag=True, frozen=True):
    """The child's loop turns."""

    held: int = 0
    """Jobs it has in its hands: running, waiting to run, or not settled yet."""
    totals: dict[str, int] = {}
    """What it has settled."""
    interrupted: int = 0
    """Running handlers that its deadline ended, once it has stopped: a lifespan may take long to end, or be killed."""
    memory: int = 0
    """Bytes it takes, where that is asked for."""


class Bye(msgspec.Struct, tag=True, frozen=True):
    """The child has stopped, and how that went."""

    totals: dict[str, int]
    interrupted: int
    abandoned: int
    error: str = ""
    """The first, as text."""


class Retire(msgspec.Struct, tag=True, frozen=True):
    """To the child: go, if nothing is in your hands now, and refuse otherwise."""

    until: float
    """By the machine's monotonic clock: later it is not meant any more."""


class Drain(msgspec.Struct, tag=True, frozen=True):
    """To the child: another one serves in its place. Claim nothing more, let all that runs end, and go."""


class Retiring(msgspec.Struct, tag=True, frozen=True):
    """It goes: it had nothing in its hands, and takes nothing more."""


class Busy(msgspec.Struct, tag=True, frozen=True):
    """It stays: it has this many jobs in its hands."""

    held: int


class Weigh(msgspec.Struct, tag=True, frozen=True):
    """To the child: how many processes does the app's own strategy want?"""

    number: int
    metrics: Metrics


class Weighed(msgspec.Struct, tag=True, frozen=True):
    """What it wants, or why that is not known."""

    number: int
    wanted: int = 0
    error: str = ""


class Longer(msgspec.Struct, tag=True, frozen=True):
    """A job starts that may run longer than ``longest_timeout``: that is its timeout from now on."""

    timeout: float


class Suspects(msgspec.Struct, tag=True, frozen=True):
    """A queue has jobs that must run alone."""

    queue: Address


class Ready(msgspec.Struct, tag=True, frozen=True):
    """To the child: its leases will be kept."""


class Trouble(msgspec.Struct, tag=True, frozen=True):
    """To the child, for its observers: a problem of the supervisor's."""

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
    """Send one word; a listener that is gone is noticed by reading, not here."""
    if not writer.is_closing():
        writer.write(_encoder.encode(word) + b"\n")


async def hear(reader: asyncio.StreamReader) -> Word | None:
    """The next word; None when the other end is gone."""
    try:
        line = await reader.readline()
    except (ConnectionError, OSError):
        return None
    return _decoder.decode(line) if line.endswith(b"\n") else None


async def streams(end: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One end of the pair as streams."""
    end.setblocking(False)
    return await asyncio.open_connection(sock=end, limit=LINE_LIMIT)


def encode_orders(orders: Orders) -> str:
    """For a command line."""
    return _encoder.encode(orders).decode()


def decode_orders(text: str) -> Orders:
    """From a command line."""
    return msgspec.json.decode(text, type=Orders)
