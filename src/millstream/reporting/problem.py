"""Problems: the value that an app's observers receive when something goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from millstream.model.address import Address

During = Literal["read", "reclaim", "renew", "promote", "settle", "publish", "decode", "handler", "maintenance", "unclosed"]
"""The operation that failed.

- read: claiming messages
- reclaim: taking over the messages of a worker that died or was cut off
- renew: renewing leases
- promote: waking up for due messages
- settle: sending outcomes to the server
- publish: sending jobs and events
- decode: reading a message that is malformed, too large, of an unknown task, or whose arguments do not fit
- handler: running a handler
- maintenance: everything else, including start and stop
- unclosed: no operation; an app or a worker was entered and never left
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One failure: the operation, the address, the error, and the number of consecutive failures."""

    during: During
    error: BaseException
    at: datetime
    """Time of the failure, by the clock of this machine."""
    address: str | None = None
    """Address of the queue, topic, group or shard, or ``None``. ``queue``, ``topic`` and ``group`` are its parts."""
    worker: str | None = None
    """Id of the worker, as listed by ``millstream workers``."""
    job_id: str | None = None
    """Id of the job or event. For a batch that failed as a whole, the id of its first event."""
    attempt: int | None = None
    """Attempt of that job or event, starting at 1."""
    crash: bool = False
    """True if a process died, or if Millstream has a bug. False for an error of a handler, a bad message, or a server that is
    unreachable or refuses a request."""
    streak: int = 1
    """Number of consecutive failures of the same operation at the same address. Always 1 for a job or event, which is reported
    individually."""
    missed: int = 0
    """Number of problems before this one that were dropped, because the observers were too slow."""

    @property
    def queue(self) -> str | None:
        """Name of the queue, or ``None``. For a shard, the name of the base queue."""
        address = self._address
        return None if address is None or not address.is_queue else address.name

    @property
    def topic(self) -> str | None:
        """Name of the topic, also of a group's topic, or ``None``. For a shard, the name of the base topic."""
        address = self._address
        return None if address is None or address.is_queue else address.name

    @property
    def group(self) -> str | None:
        """Name of the group, or ``None``."""
        address = self._address
        return None if address is None else address.group or None

    @property
    def _address(self) -> Address | None:
        return None if self.address is None else Address(self.address)
