"""Where a URL leads: the only file that knows all backends. A process loads the one it lives in, and no other."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

from millstream.config import DEFAULT_NAMESPACE, Url
from millstream.errors import BrokerUnavailable, UsageError
from millstream.model.settings import AppSettings

if TYPE_CHECKING:
    from millstream.broker import Broker
    from millstream.client import Backend


def where(url: Url, namespace: str) -> str:
    """Where queues are, for people: the URL without its password, or the folder of the embedded server; and the namespace,
    unless it is the default."""
    return _server(url) if namespace == DEFAULT_NAMESPACE else f"{_server(url)}, namespace {namespace}"


def _server(url: Url) -> str:
    if url.scheme != "embedded":
        return url.safe
    from millstream.backends.embedded import data_folder

    return f"embedded server in {data_folder(url.path or None)}"


def make_backend(url: Url, settings: AppSettings) -> Backend:
    """Where a URL leads. Connects to nothing yet."""
    return MemoryBackend(url, settings) if url.scheme == "memory" else RedisBackend(url, settings)


class MemoryBackend:
    """This process. One broker serves every loop; without a name it is this app's alone."""

    def __init__(self, url: Url, settings: AppSettings) -> None:
        from millstream.backends.memory import MemoryBroker

        self.where = where(url, settings.namespace)
        self._broker = MemoryBroker(url.name, namespace=settings.namespace, id_ttl=settings.id_ttl)

    async def connect(self) -> Broker:
        await self._broker.open()
        return self._broker


class RedisBackend:
    """A server: the user's, or one of our own on this machine, started by whoever needs it first."""

    def __init__(self, url: Url, settings: AppSettings) -> None:
        self._url = url
        self._settings = settings
        self._reached = False

    @property
    def where(self) -> str:
        return where(self._url, self._settings.namespace)

    async def connect(self) -> Broker:
        # The first import takes 0.1 s, which the loop shall not stand still for.
        await asyncio.to_thread(importlib.import_module, "millstream.backends.redis")
        from millstream.backends.redis import RedisBroker

        broker = RedisBroker(
            self._ensure_server if self._url.scheme == "embedded" else self._url.text,
            namespace=self._settings.namespace,
            id_ttl=self._settings.id_ttl,
            where=_server(self._url),
        )
        try:
            await broker.open()
        except BaseException:
            await broker.close()
            raise
        self._reached = True
        return broker

    async def _ensure_server(self) -> str:
        """Asked before every connection: a server that stopped because nobody used it is started again."""
        from millstream.backends.embedded import ensure_server

        try:
            return await asyncio.to_thread(ensure_server, self._url.path or None)
        except UsageError as error:
            if not self._reached:
                raise
            raise BrokerUnavailable(str(error)) from error  # it has worked: whoever serves goes on, and tries again
