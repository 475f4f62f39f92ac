"""The whole of what a backend promises."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from millstream.broker.control import ControlChannel
from millstream.broker.results import ResultStore
from millstream.broker.roles import Consuming, Operating, Producing, Registering
from millstream.broker.values import Capabilities
from millstream.model.address import Address


class Broker(Producing, Consuming, Operating, Registering):
    """A backend: everything that can happen to a job, atomically, and nothing about users' types.

    Any verb may raise BrokerUnavailable (try again later) or BrokerRefused (never). Every verb may be sent again after a lost
    reply: publish recognises serials and given ids, settle and release skip what is settled, the rest is idempotent.

    A verb that reports what it changed takes ``request``, a name that the caller chooses for one request. Sent again under the
    same name within REQUEST_SECONDS, the verb changes nothing more and gives its first answer. Only an answer that reports a
    change is remembered.
    """

    capabilities: Capabilities
    repaired: Callable[[Address, str], object] | None = None
    """Told of what others had destroyed and a verb has made again: the address, and what it was."""

    @property
    @abstractmethod
    def results(self) -> ResultStore:
        """Waiting for endings."""

    @property
    @abstractmethod
    def control(self) -> ControlChannel:
        """Asking a supervisor, and answering."""

    @abstractmethod
    async def open(self) -> None:
        """Connect and check the server. BrokerRefused names what is wrong with it. Idempotent."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of every connection. Idempotent."""
