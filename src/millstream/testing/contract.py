"""The Broker contract as a test suite. Subclass it, override ``make_broker``, and run it with pytest."""

from __future__ import annotations

from millstream.testing.promises.blocked import BlockedPromises
from millstream.testing.promises.claiming import ClaimingPromises
from millstream.testing.promises.emitting import EmittingPromises
from millstream.testing.promises.explaining import ExplainingPromises, UnknownTaskPromises
from millstream.testing.promises.following import FollowingPromises
from millstream.testing.promises.groups import GroupPromises
from millstream.testing.promises.inspecting import InspectingPromises
from millstream.testing.promises.keeping import KeepingPromises
from millstream.testing.promises.leases import LeasePromises
from millstream.testing.promises.letters import LetterPromises
from millstream.testing.promises.max_consumers import MaxConsumersPromises
from millstream.testing.promises.operating import OperatingPromises
from millstream.testing.promises.order import OrderPromises
from millstream.testing.promises.ordered_groups import OrderedGroupPromises
from millstream.testing.promises.ordered_queues import OrderedQueuePromises
from millstream.testing.promises.pending import PendingPromises
from millstream.testing.promises.prefixes import PrefixPromises
from millstream.testing.promises.publishing import PublishingPromises
from millstream.testing.promises.requests import RequestPromises, TopicRequestPromises
from millstream.testing.promises.results import ResultPromises
from millstream.testing.promises.seeking import SeekingPromises
from millstream.testing.promises.settling import SettlingPromises
from millstream.testing.promises.shards import ShardPromises
from millstream.testing.promises.stopping import StoppingPromises
from millstream.testing.promises.supervising import SupervisingPromises
from millstream.testing.promises.suspects import SuspectPromises
from millstream.testing.promises.upkeep import UpkeepPromises
from millstream.testing.promises.waiting import WaitingPromises


class QueueContract(
    PublishingPromises,
    ClaimingPromises,
    WaitingPromises,
    LeasePromises,
    SuspectPromises,
    SettlingPromises,
    OperatingPromises,
    InspectingPromises,
    ExplainingPromises,
    ResultPromises,
    OrderPromises,
    BlockedPromises,
    PendingPromises,
    StoppingPromises,
    RequestPromises,
    MaxConsumersPromises,
    SupervisingPromises,
):
    """The promises of a queue, and therefore of a group, one test each.

    They run at the addresses ``queue`` and ``other_queue``.
    """


class BrokerContract(
    QueueContract,
    EmittingPromises,
    GroupPromises,
    PrefixPromises,
    KeepingPromises,
    UpkeepPromises,
    SeekingPromises,
    LetterPromises,
    FollowingPromises,
    OrderedQueuePromises,
    OrderedGroupPromises,
    ShardPromises,
    UnknownTaskPromises,
    TopicRequestPromises,
):
    """Every promise of ``millstream.broker``, one test each.

    A subclass whose name starts with ``Test`` overrides ``make_broker(**options)``. All brokers made in one test share the same
    queues, and no other test sees them. Each broker has a method ``set_clock(now: float | None)`` that stops its clock at
    ``now``; ``None`` lets it run.
    """
