"""The reference backend: the Broker contract in plain Python, for tests and as the model the other backends are held against.

Everything is lost with the process. No rule is clever here: where this backend and another differ, this one is read first.
"""

from millstream.backends.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
