"""Lost calls: for every method of a client, each request and each reply is lost once, and the answer must still be true."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from itertools import count
from typing import get_args

from chaos.proxy import Proxy, Side
from chaos.server import Engine
from chaos.site import Site, open_site
from chaos.stage import Stuck
from chaos.trials.trial import TrialResult
from chaos.trials.verbs import VERBS, Verb
from chaos.verbs import make_app
from millstream.errors import MillstreamError

MOST_CALLS = 40
"""No method makes more calls than this."""

AT_ONCE = 16
"""Methods that are tried at the same time."""

ANSWER_SECONDS = 30.0
"""Seconds within which a method has answered, on any machine that runs this suite."""


@dataclass(frozen=True)
class LostCallsTest:
    """The methods to try."""

    verbs: tuple[Verb, ...] = VERBS

    @property
    def meaning(self) -> str:
        return (
            f"{len(self.verbs)} methods of a client. A method makes one or more calls to the server. For each of these calls, "
            "the method is tried once from the same state, and the connection is cut before that request reaches the server. "
            "Then it is tried again, and the connection is cut before that reply reaches the client. The client reconnects by "
            "itself. The answer, and the state afterwards, must be the same as without a loss. Each try loses one call."
        )


async def run(test: LostCallsTest, engine: Engine, seed: int) -> TrialResult:
    """Run the trial. Only the times of the client's retries are random."""
    result, began = TrialResult("lost_calls", "Lost requests and replies", test.meaning), time.monotonic()
    async with open_site(make_app, 30.0, engine) as site:
        result.server = site.server.name
        gate, numbers = asyncio.Semaphore(AT_ONCE), count()

        async def try_one(verb: Verb) -> tuple[int, list[str]]:
            async with gate:
                return await _Tries(site, verb, numbers, random.Random(seed)).run()

        found = await asyncio.gather(*(try_one(verb) for verb in test.verbs))
    for verb, (losses, lies) in zip(test.verbs, found, strict=True):
        result.expect(f"{verb.name} answers `{verb.answer!r}`", "; ".join(lies) or f"yes, with {losses} losses", not lies)
    result.seconds = time.monotonic() - began
    return result


class _Tries:
    """One method, with each of its calls lost once."""

    def __init__(self, site: Site, verb: Verb, numbers: count[int], rng: random.Random) -> None:
        self._site = site
        self._verb = verb
        self._numbers = numbers
        self._rng = rng

    async def run(self) -> tuple[int, list[str]]:
        """Return the number of losses, and what was wrong as text. The last try of each side loses nothing."""
        losses, lies = 0, list[str]()
        for side in get_args(Side):
            for number in range(1, MOST_CALLS):
                happened, lie = await self._once(side, number)
                if lie:
                    lies.append(f"{side} {number} lost: {lie}" if happened else f"undisturbed: {lie}")
                if not happened:
                    break
                losses += 1
        return losses, lies

    async def _once(self, side: Side, number: int) -> tuple[bool, str]:
        """Return whether a call was lost, and what was wrong."""
        verb, site, namespace = self._verb, self._site, f"n{next(self._numbers)}"
        proxy = Proxy(site.server.path, self._rng)
        await proxy.start()
        try:
            async with (
                make_app(url=site.server.url, namespace=namespace) as plain,
                make_app(url=proxy.url, namespace=namespace) as app,
            ):
                await verb.prepare(plain)
                await app.inspector.queues()  # to connect
                with proxy.losing(side, number) as loss:
                    answer = await _answer(verb.act(app))
                state = await verb.look(plain)
        finally:
            await proxy.stop()
        wrong = [f"it answered {answer!r}"] if answer != verb.answer else []
        wrong += [f"the state was {state!r}, not {verb.state!r}"] if state != verb.state else []
        return loss.happened, " and ".join(wrong)


async def _answer(call: Awaitable[object]) -> object:
    try:
        return await asyncio.wait_for(call, ANSWER_SECONDS)
    except MillstreamError as error:
        return type(error).__name__
    except TimeoutError:
        raise Stuck(f"a call did not answer within {ANSWER_SECONDS:g} s") from None
