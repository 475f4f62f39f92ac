"""For those who write a backend: the contract every Broker keeps, as tests. Needs pytest."""

from millstream.testing.contract import BrokerContract, QueueContract

__all__ = ["BrokerContract", "QueueContract"]
