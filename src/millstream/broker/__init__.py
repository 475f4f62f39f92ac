"""The promise every backend keeps: what can happen to a job, each verb one whole, atomic transition for a batch.

Backends (``millstream.backends``) implement it, and ``millstream.testing.BrokerContract`` proves that they do. Durations are
seconds; entry references and bodies are opaque bytes.
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
