"""For those who write a room: the contract every Broker keeps, as tests. Needs pytest."""

from millstream.testing.contract import BrokerContract

__all__ = ["BrokerContract"]
