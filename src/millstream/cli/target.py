"""The server and namespace that a command works on. It never imports the user's code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from millstream.app import Millstream
from millstream.errors import BrokerUnavailable, MillstreamError, UsageError
from millstream.model.address import Address

T = TypeVar("T")


def at(url: str | None, namespace: str | None, do: Callable[[Millstream], Awaitable[T]]) -> T:
    """Connect, call ``do``, and close. If the server is unreachable, fail immediately instead of retrying."""
    app = Millstream(url, namespace=namespace)
    check_reach(app)
    if app.url.scheme == "embedded":
        from millstream.backends.embedded import data_folder

        folder = data_folder(app.url.path or None)
        if not folder.is_dir():  # a command that only looks must not create a server
            raise UsageError(f"there are no queues yet in {folder}: for another server use --url or set MILLSTREAM_URL")
    return run(app, do)


def where(url: str | None, namespace: str | None) -> str:
    """Return a description of the server that ``at`` connects to."""
    return Millstream(url, namespace=namespace).where


def run(app: Millstream, do: Callable[[Millstream], Awaitable[T]]) -> T:
    """Connect an app, call ``do``, and close."""

    async def connect_and_do() -> T:
        async with app:
            with away_is_told():
                await app.broker()
            return await do(app)

    with quiet():
        return asyncio.run(connect_and_do())


@contextmanager
def away_is_told() -> Generator[None]:
    """Add a hint to the error of an unreachable server."""
    try:
        yield
    except BrokerUnavailable as error:
        hint = "Is the server running? For another server use --url or set MILLSTREAM_URL"
        raise BrokerUnavailable(f"{str(error).rstrip('.')}. {hint}") from error


@contextmanager
def quiet() -> Generator[None]:
    """Hide log warnings. They would clutter the output, and ``millstream doctor`` reports the same problems."""
    log = logging.getLogger("millstream")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def check_reach(app: Millstream) -> None:
    """Raise UsageError if the app uses ``memory://``, which no other process can see."""
    if app.url.scheme == "memory":
        raise UsageError("memory:// exists only within one process, so no command can see it: use --url or set MILLSTREAM_URL")


async def queues_of(app: Millstream, queue: str | None) -> list[Address]:
    """Return the address of one queue or group, or all addresses if ``queue`` is ``None``.

    Raises MillstreamError if it does not exist.
    """
    names = [Address(name) for name in await app.inspector.addresses()]
    if queue is None:
        return names
    if queue not in names:
        raise MillstreamError(
            f"there is no queue {queue!r}; {'existing queues: ' + ', '.join(names) if names else 'no queue exists yet'} "
            f"(at {app.where})"
        )
    return [Address(queue)]
