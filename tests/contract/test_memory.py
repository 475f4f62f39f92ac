"""The memory room keeps the contract."""

from __future__ import annotations

import uuid
from typing import Any

from millstream.memory import MemoryBroker
from millstream.testing import BrokerContract


class TestMemoryBroker(BrokerContract):
    def setup_method(self) -> None:
        self.name = uuid.uuid4().hex

    def make_broker(self, **options: Any) -> MemoryBroker:
        return MemoryBroker(self.name, **options)
