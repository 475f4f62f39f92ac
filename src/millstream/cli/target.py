"""Where a command looks and acts: a URL and a namespace, never the user's code."""

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
    """Connect there, do one thing, and close. A server that is away is told at once, not after a while."""
    app = Millstream(url, namespace=namespace)
    check_reach(app)
    if app.url.scheme == "embedded":
        from millstream.backends.embedded import data_folder

        folder = data_folder(app.url.path or None)
        if not folder.is_dir():  # looking at something must not make it
            raise UsageError(f"there are no queues yet in {folder}: say --url, or set MILLSTREAM_URL, for another server")
    return run(app, do)


def where(url: str | None, namespace: str | None) -> str:
    """Where ``at`` connects to, in words."""
    return Millstream(url, namespace=namespace).where


def run(app: Millstream, do: Callable[[Millstream], Awaitable[T]]) -> T:
    """Connect, do one thing with an app, and close."""

    async def connect_and_do() -> T:
        async with app:
            with away_is_told():
                await app.broker()
            return await do(app)

    with quiet():
        return asyncio.run(connect_and_do())


@contextmanager
def away_is_told() -> Generator[None]:
    """A server that is not there: the way out is ours to say."""
    try:
        yield
    except BrokerUnavailable as error:
        hint = "is it running? --url or $MILLSTREAM_URL say where else to look"
        raise BrokerUnavailable(f"{str(error).rstrip('.')}: {hint}") from error


@contextmanager
def quiet() -> Generator[None]:
    """What there is to warn about is for the doctor to say."""
    log = logging.getLogger("millstream")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def check_reach(app: Millstream) -> None:
    """UsageError if the queues are in another process's memory."""
    if app.url.scheme == "memory":
        raise UsageError("memory:// is inside one process and cannot be seen from another: say --url, or set MILLSTREAM_URL")


async def queues_of(app: Millstream, queue: str | None) -> list[Address]:
    """The one queue asked for, or all; MillstreamError if there is no such queue."""
    names = [Address(name) for name in await app.inspector.addresses()]
    if queue is None:
        return names
    if queue not in names:
        raise MillstreamError(
            f"there is no queue {queue!r}; {'there are ' + ', '.join(names) if names else 'there is none yet'} (at {app.where})"
        )
    return [Address(queue)]
