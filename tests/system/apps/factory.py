"""An app that a function creates."""

from __future__ import annotations

import asyncio

from millstream import Millstream

try:
    from ledger import entry  # in a worker, whose working directory is this folder
except ImportError:
    from tests.system.apps.ledger import entry  # in the tests, which only enqueue


def create_app() -> Millstream:
    app = Millstream(grace=600)

    @app.task
    async def linger(key: str) -> None:
        with entry(key):
            await asyncio.Event().wait()

    return app


def create_nothing() -> None: ...


def create_badly() -> Millstream:
    raise RuntimeError("no database")
