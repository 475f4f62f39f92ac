"""Create the backend for a URL. This is the only file that knows all backends; a process imports only the one it uses."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

from millstream.config import DEFAULT_NAMESPACE
from millstream.errors import BrokerUnavailable, UsageError
from millstream.model.settings import AppSettings
from millstream.url import Url

if TYPE_CHECKING:
    from millstream.broker import Broker
    from millstream.client import Backend


def where(url: Url, namespace: str) -> str:
    """Return a readable location: the URL without its password, or the folder of the embedded server. A namespace other than
    the default is appended."""
    return _server(url) if namespace == DEFAULT_NAMESPACE else f"{_server(url)}, namespace {namespace}"


def _server(url: Url) -> str:
    if url.scheme != "embedded":
        return url.safe
    from millstream.backends.embedded import data_folder

    return f"embedded server in {data_folder(url.path or None)}"


def make_backend(url: Url, settings: AppSettings) -> Backend:
    """Return the backend for a URL, without connecting. Raises UsageError if it cannot have the replicas that are asked for."""
    if settings.replicas and url.scheme in ("memory", "embedded"):
        raise UsageError(f"replicas={settings.replicas}, but {url.scheme}:// has no replicas: use a server with replicas")
    return MemoryBackend(url, settings) if url.scheme == "memory" else RedisBackend(url, settings)


class MemoryBackend:
    """Queues in the memory of this process. One broker serves every event loop; without a name, only this app can use it."""

    def __init__(self, url: Url, settings: AppSettings) -> None:
        from millstream.backends.memory import MemoryBroker

        self.where = where(url, settings.namespace)
        self._broker = MemoryBroker(url.name, namespace=settings.namespace, id_ttl=settings.id_ttl)

    async def connect(self) -> Broker:
        await self._broker.open()
        return self._broker


class RedisBackend:
    """A Redis or Valkey server: the user's own, or the embedded server, which is started on demand."""

    def __init__(self, url: Url, settings: AppSettings) -> None:
        self._url = url
        self._settings = settings
        self._reached = False

    @property
    def where(self) -> str:
        return where(self._url, self._settings.namespace)

    async def connect(self) -> Broker:
        # The first import takes 0.1 s. It runs in a thread so that the event loop is not blocked.
        await asyncio.to_thread(importlib.import_module, "millstream.backends.redis")
        from millstream.backends.redis import RedisBroker

        broker = RedisBroker(
            self._ensure_server if self._url.scheme == "embedded" else self._url.text,
            namespace=self._settings.namespace,
            id_ttl=self._settings.id_ttl,
            replicas=self._settings.replicas,
            replicas_timeout=self._settings.replicas_timeout,
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
        """Return the URL of the embedded server. Called before every connection, so that a server that stopped while it was
        unused is started again."""
        from millstream.backends.embedded import ensure_server

        try:
            return await asyncio.to_thread(ensure_server, self._url.path or None)
        except UsageError as error:
            if not self._reached:
                raise
            # The server worked before: report an outage, so that a running worker keeps retrying instead of exiting.
            raise BrokerUnavailable(str(error)) from error
