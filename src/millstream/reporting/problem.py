"""Problems: what an app's observers are told of when something goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from millstream.model.address import Address

During = Literal["read", "reclaim", "renew", "promote", "settle", "publish", "decode", "handler", "maintenance", "unclosed"]
"""What was being done.

- read: claiming
- reclaim: taking over what a worker that died, or was cut off, had held
- renew: keeping leases
- promote: waking up for what is due
- settle: sending outcomes to the server
- publish: sending jobs and events
- decode: reading what was sent; it is malformed, too large, of an unknown task, or its arguments do not fit
- handler: running it
- maintenance: everything that runs beside that, starting and stopping included
- unclosed: nothing; an app or a worker was entered and never left
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that went wrong: during what, where, and how often in a row."""

    during: During
    error: BaseException
    at: datetime
    """By the clock of this machine."""
    address: str | None = None
    """Of which queue, topic or group, or shard of one; ``queue``, ``topic`` and ``group`` take it apart. None: of no one."""
    worker: str | None = None
    """The id of the worker, as ``millstream workers`` lists it."""
    job_id: str | None = None
    """Of the job or event; of a batch that failed as one, its first."""
    attempt: int | None = None
    """Of that job or event, 1 for the first."""
    crash: bool = False
    """A process died, or a part of Millstream failed as it never should; False: a handler's own error, a bad message, a server
    that is away or refuses."""
    streak: int = 1
    """How often in a row: the same was being done in the same place and has not worked since. Jobs and events are told of
    one by one, with a 1 each."""
    missed: int = 0
    """How many problems before this one were not told, since the observers were too slow."""

    @property
    def queue(self) -> str | None:
        """The queue, if it is about one; of a shard, the whole's name."""
        address = self._address
        return None if address is None or not address.is_queue else address.name

    @property
    def topic(self) -> str | None:
        """The topic, if it is about one or about a group of it; of a shard, the whole's name."""
        address = self._address
        return None if address is None or address.is_queue else address.name

    @property
    def group(self) -> str | None:
        """The group of the topic, if it is about one."""
        address = self._address
        return None if address is None else address.group or None

    @property
    def _address(self) -> Address | None:
        return None if self.address is None else Address(self.address)
