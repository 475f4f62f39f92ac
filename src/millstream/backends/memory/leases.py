"""The leases of the consumers at one address."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.broker import Membership
from millstream.broker.values import OVERDUE_SECONDS

OVERDUE_MS = round(OVERDUE_SECONDS * 1000)


@dataclass(slots=True)
class Lease:
    deadline_ms: int
    overdue_ms: int | None = None
    """When a lease check first found the lease past its deadline."""


class Leases(dict[str, Lease]):
    """Leases by consumer name."""

    def extend(self, consumer: str, seconds: float, now_ms: int) -> None:
        self[consumer] = Lease(now_ms + round(seconds * 1000))

    def check(self, now_ms: int) -> list[str]:
        """Check all leases and return the consumers whose leases lapsed.

        The first check marks an overdue lease. A check at least OVERDUE_SECONDS later lapses it. Live consumers renew between
        the two checks, so a stall of the server does not make them look dead.
        """
        lapsed: list[str] = []
        for consumer, lease in self.items():
            if lease.deadline_ms > now_ms:
                continue
            if lease.overdue_ms is None:
                lease.overdue_ms = now_ms
            elif now_ms - lease.overdue_ms >= OVERDUE_MS:
                lapsed.append(consumer)
        for consumer in lapsed:
            del self[consumer]
        return lapsed

    def join_members(self, member: str, seconds: float, now_ms: int) -> Membership:
        """Add or extend a membership. One check is enough to remove an overdue member, since a member holds no messages."""
        for name in [name for name, lease in self.items() if lease.deadline_ms <= now_ms]:
            del self[name]
        self.extend(member, seconds, now_ms)
        others = [lease.deadline_ms for name, lease in self.items() if name != member]
        return Membership(sorted(self), (min(others) - now_ms) / 1000 if others else None)
