"""The contract of a Broker as tests, for authors of backends. Needs pytest."""

from millstream.testing.contract import BrokerContract, QueueContract

__all__ = ["BrokerContract", "QueueContract"]
