"""The reference room: the Broker contract in plain Python, for tests and as the model the other rooms are held against.

Everything is lost with the process. No rule is clever here: where this room and another differ, this one is read first.
"""

from millstream.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
