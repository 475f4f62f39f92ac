"""The complete interface of a backend."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from millstream.broker.control import ControlChannel
from millstream.broker.results import ResultStore
from millstream.broker.roles import Consuming, Operating, Producing, Registering
from millstream.broker.values import Capabilities
from millstream.model.address import Address


class Broker(Producing, Consuming, Operating, Registering):
    """A backend: every transition of a job, each atomic. A backend does not know the users' types.

    Any verb may raise BrokerUnavailable (try again later) or BrokerRefused (retrying does not help). Every verb may be sent
    again after a lost reply: publish recognises serials and given ids, settle and release skip settled messages, and the other
    verbs are idempotent.

    A verb that reports what it changed takes ``request``, a name that the caller chooses for one request. If the verb is sent
    again under the same name within REQUEST_SECONDS, it changes nothing more and returns its first answer. Only an answer that
    reports a change is remembered.
    """

    capabilities: Capabilities
    repaired: Callable[[Address, str], object] | None = None
    """Called with an address and a description after a verb has restored something that another program had destroyed there."""

    @property
    @abstractmethod
    def results(self) -> ResultStore:
        """Waits for endings."""

    @property
    @abstractmethod
    def control(self) -> ControlChannel:
        """Sends requests to a supervisor, and receives answers."""

    @abstractmethod
    async def open(self) -> None:
        """Connect and check the server. BrokerRefused names what is wrong with it. Idempotent."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection. Idempotent."""
