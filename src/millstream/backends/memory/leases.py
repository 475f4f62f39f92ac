"""Who may hold what is claimed at one address, and until when."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.broker import Membership
from millstream.broker.values import OVERDUE_SECONDS

OVERDUE_MS = round(OVERDUE_SECONDS * 1000)


@dataclass(slots=True)
class Lease:
    deadline_ms: int
    overdue_ms: int | None = None
    """When it was first seen to be past its deadline."""


class Leases(dict[str, Lease]):
    """By consumer."""

    def extend(self, consumer: str, seconds: float, now_ms: int) -> None:
        self[consumer] = Lease(now_ms + round(seconds * 1000))

    def check(self, now_ms: int) -> list[str]:
        """The first check marks an overdue lease, one that comes OVERDUE_SECONDS later lapses it: two checks at a stalled
        server's clock cannot make the living look dead, since their keepers renew in between. Whose leases lapsed."""
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
        """One check is enough here: who is overdue is only forgotten."""
        for name in [name for name, lease in self.items() if lease.deadline_ms <= now_ms]:
            del self[name]
        self.extend(member, seconds, now_ms)
        others = [lease.deadline_ms for name, lease in self.items() if name != member]
        return Membership(sorted(self), (min(others) - now_ms) / 1000 if others else None)
