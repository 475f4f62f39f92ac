"""The reference backend: the Broker contract in plain Python, for tests and as the model for the other backends.

All data is lost when the process ends. The code favours clarity over speed: if this backend and another one differ, read this
one first.
"""

from millstream.backends.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
