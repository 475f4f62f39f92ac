"""The interface that every backend implements. Each verb is one atomic transition, for a batch of messages.

The backends are in ``millstream.backends``, and ``millstream.testing.BrokerContract`` tests them. Durations are seconds. Entry
references and bodies are opaque bytes.
"""

from millstream.broker.contract import Broker
from millstream.broker.control import ControlChannel
from millstream.broker.inspector import (
    Finding,
    GroupState,
    Inspector,
    JobView,
    Listed,
    QueueState,
    StoppedKey,
    Team,
    TopicState,
    WorkerInfo,
)
from millstream.broker.results import ResultStore
from millstream.broker.roles import Consuming, Operating, Producing, Registering
from millstream.broker.values import (
    Cancellation,
    Capabilities,
    Claim,
    Entry,
    EntryLocation,
    Followed,
    Membership,
    OrderRules,
    Position,
    Post,
    Receipt,
)
from millstream.broker.why import Standing, Trouble, Why, WhyCode

__all__ = [
    "Broker",
    "Cancellation",
    "Capabilities",
    "Claim",
    "Consuming",
    "ControlChannel",
    "Entry",
    "EntryLocation",
    "Finding",
    "Followed",
    "GroupState",
    "Inspector",
    "JobView",
    "Listed",
    "Membership",
    "Operating",
    "OrderRules",
    "Position",
    "Post",
    "Producing",
    "QueueState",
    "Receipt",
    "Registering",
    "ResultStore",
    "Standing",
    "StoppedKey",
    "Team",
    "TopicState",
    "Trouble",
    "Why",
    "WhyCode",
    "WorkerInfo",
]
