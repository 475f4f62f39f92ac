"""Idle connections: a device between client and server silently drops them, and the next call must still succeed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest

from chaos.proxy import Proxy
from chaos.server import Engine
from chaos.site import Site, open_site
from chaos.stage import Stuck, until
from chaos.trials.trial import TrialResult
from chaos.verbs import NEWS, NOTES, make_app
from millstream import Job, Millstream
from millstream.backends.redis.link import CALL_TIMEOUT
from millstream.backends.redis.results import QUIET_SECONDS
from millstream.client.outbox import PATIENCE_SECONDS
from millstream.errors import MillstreamError

MODULE = "chaos.verbs"

AT_ONCE = 10
"""Enqueues in one burst, or in one bulk call."""

RESULT_SECONDS = QUIET_SECONDS + 2 * CALL_TIMEOUT + 1.0
"""After a few quiet seconds, a waiting client asks whether the server is there, and closes a silent connection."""

WORKER_SECONDS = 2 * CALL_TIMEOUT + 2.0
"""A worker always has a call under way: it waits 1 s and then for the reply, and the same again for a renewal."""


@dataclass(frozen=True)
class IdleTest:
    """Durations of the trial."""

    idle: float = 6.0
    """Seconds without a call."""
    forgets_after: float = 2.0
    """Seconds without a byte after which a connection is dropped."""

    @property
    def meaning(self) -> str:
        return (
            f"A proxy drops connections that were idle for {self.forgets_after:g} s. It tells neither side, and all further "
            f"bytes vanish, as with a NAT gateway or a load balancer. New connections work. Clients are idle for "
            f"{self.idle:g} s and then make one call, which must succeed within its {PATIENCE_SECONDS:g} s."
        )


Send = Callable[[Millstream, "_Trial"], Awaitable[object]]


async def run(test: IdleTest, engine: Engine, seed: int, *, bounded: bool = True) -> TrialResult:
    """Run the trial. ``bounded``: a call that takes too long is a breach."""
    result, began = TrialResult("idle", "Dropped idle connections", test.meaning), time.monotonic()
    async with open_site(make_app, 15.0, engine) as site:
        result.server = site.server.name
        trial = _Trial(site, test, result, random.Random(seed), bounded)
        try:
            await trial.play()
            await site.drained([NOTES, f"{NEWS}/readers"])
            result.verdict = await site.judge([NOTES, f"{NEWS}/readers"])
        except Stuck as stuck:
            result.verdict.breaches.append(str(stuck))
        finally:
            await trial.clean_up()
        result.logs = site.logs if result.breaches else ""
    result.seconds = time.monotonic() - began
    return result


class _Trial:
    def __init__(self, site: Site, test: IdleTest, result: TrialResult, rng: random.Random, bounded: bool) -> None:
        self._site = site
        self._test = test
        self._result = result
        self._rng = rng
        self._bounded = bounded
        self._proxies: list[Proxy] = []

    async def play(self) -> None:
        """Run all clients at the same time, and then the worker."""
        proxy = await self._proxy()
        await self._site.until_serving([self._site.begin_worker(MODULE, url=proxy.url)])
        await asyncio.gather(
            self._one("`enqueue` after an idle time succeeds", _enqueue),
            self._one(f"{AT_ONCE} concurrent enqueues after an idle time succeed", _enqueue_at_once),
            self._one("`enqueue_many` after an idle time succeeds", _enqueue_many),
            self._one("`publish` after an idle time succeeds", _publish),
            self._one("`job.status` after an idle time succeeds", _status),
            self._one("`enqueue` on a connection that was dropped right after use succeeds", _enqueue, idle=False),
            self._wait_for_result(),
        )
        await self._forget_worker(proxy)

    async def clean_up(self) -> None:
        for proxy in self._proxies:
            await proxy.stop()

    @contextmanager
    def sending(self, *keys: str) -> Iterator[list[str]]:
        """Record the sending of these keys. The block adds their ids to the list; if it raises, their fate is unknown."""
        ids: list[str] = []
        try:
            yield ids
        finally:
            for key, job_id in zip_longest(keys, ids, fillvalue=""):
                self._site.ledger.enqueue(key, job_id, "accepted" if job_id else "unknown")

    async def _proxy(self) -> Proxy:
        proxy = Proxy(self._site.server.path, self._rng)
        self._proxies.append(proxy)
        await proxy.start()
        return proxy

    async def _one(self, name: str, send: Send, *, idle: bool = True) -> None:
        """Use a client, leave it idle, and make one call."""
        proxy = await self._proxy()
        async with make_app(url=proxy.url) as app:
            await _enqueue(app, self)
            if idle:
                proxy.forgets_after = self._test.forgets_after
                await asyncio.sleep(self._test.idle)
            else:
                proxy.forget_all()
            began, error = time.monotonic(), ""
            try:
                await send(app, self)
            except MillstreamError as raised:
                error = f"{type(raised).__name__} after "
            self._found(name, began, PATIENCE_SECONDS, error)

    async def _wait_for_result(self) -> None:
        """Drop the connections of a client while it waits for a result."""
        proxy = await self._proxy()
        async with make_app(url=proxy.url) as app:
            await app.queue(NOTES).pause()
            job = await _enqueue(app, self)
            waiting = asyncio.create_task(job.result())
            await asyncio.sleep(self._test.idle)
            proxy.forget_all()
            began = time.monotonic()
            await self._site.app.queue(NOTES).resume()
            try:
                await asyncio.wait_for(waiting, 2 * RESULT_SECONDS)
                error = ""
            except TimeoutError:
                error = "nothing after "
            self._found("`job.result` returns although its connections were dropped", began, RESULT_SECONDS, error)

    async def _forget_worker(self, proxy: Proxy) -> None:
        """Drop all connections of a worker, which has no idle ones."""
        proxy.forget_all()
        began = time.monotonic()
        job = await _enqueue(self._site.app, self)

        async def done() -> bool:
            return await job.status() == "done"

        await until(done, "a worker to notice that its connections are dead")
        self._found("a worker whose connections were dropped runs the next job", began, WORKER_SECONDS, "")

    def _found(self, name: str, began: float, bound: float, error: str) -> None:
        took = time.monotonic() - began
        kept = not error and (took <= bound or not self._bounded)
        self._result.expect(f"{name} within {bound:g} s", f"{error}{took:.1f} s", kept)


async def _enqueue(app: Millstream, trial: _Trial) -> Job[object]:
    with trial.sending(key := _key()) as ids:
        job: Job[object] = await app.tasks["note"].enqueue(key)
        ids.append(job.id)
    return job


async def _enqueue_at_once(app: Millstream, trial: _Trial) -> None:
    await asyncio.gather(*(_enqueue(app, trial) for _ in range(AT_ONCE)))


async def _enqueue_many(app: Millstream, trial: _Trial) -> None:
    keys = [_key() for _ in range(AT_ONCE)]
    with trial.sending(*keys) as ids:
        ids += [job.id for job in await app.enqueue_many(app.tasks["note"].bind(key) for key in keys)]


async def _publish(app: Millstream, trial: _Trial) -> None:
    with trial.sending(key := _key()) as ids:
        ids.append(await app.topics[NEWS].publish(key))


async def _status(app: Millstream, trial: _Trial) -> None:
    del trial
    await app.tasks["note"].job("unheard-of").status()


def _key() -> str:
    return f"note-{time.monotonic_ns()}-{random.getrandbits(32)}"
