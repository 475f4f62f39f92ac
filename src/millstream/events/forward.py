"""The forwarder: what dies in a group goes to a topic."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.broker import Post, Receipt
from millstream.client import Clients
from millstream.codec import EventCodec, ResultCodec
from millstream.codec.encoder import Payload
from millstream.events.batch import Batch
from millstream.events.dead_event import letter_settings, read_message
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter, decode_letter
from millstream.model.handler import Letters
from millstream.model.invalid import InvalidArguments
from millstream.model.message import EventFields, Message, encode_message
from millstream.model.ordering import shard_of_key
from millstream.model.outcome import Said
from millstream.model.settings import AppSettings
from millstream.reporting import logs

if TYPE_CHECKING:
    from millstream.events.topic import Topic
    from millstream.worker.hot.in_flight import InFlight

log = logs.logger("millstream.worker")

AT_ONCE = 100
"""Letters moved together."""

PAUSES = (0.5, 1.0, 2.0, 5.0)
"""Seconds to wait while the topic takes no more, or cannot be reached; the last one repeats."""

ERROR_LIMIT = 1_000
"""Characters of the error that travel in a header."""

FOR_EVER = 1 << 30
"""As ``max_crashes``: to be moved it is tried until it is."""


class Forwarder:
    """What a worker runs for a group whose dead letters go to a topic.

    A letter is published under an id of its own and leaves the list afterwards: once, however often that is begun within
    ``id_ttl``. Until it is accepted it is in the list. What cannot be moved stays there and is not tried again.
    """

    letters: Letters = "moved"
    ack = "on_success"
    keep_expired = False
    foreign = None
    is_async = True
    concurrency = 1
    batch = Batch(AT_ONCE, wait=0.0)

    def __init__(
        self, topic: str, group: str, codec: EventCodec, target: Topic[Any], clients: Clients, app: AppSettings
    ) -> None:
        self.topic = topic
        self.group = group
        self.target = target
        self.name = self.address = Address.of_group(topic, group).dead
        self.fn = self.move
        self.settings = letter_settings(self.name, timeout=app.timeout, max_crashes=FOR_EVER)
        self.arguments = _Letters()
        self.returns = ResultCodec(_nothing, task=self.name)
        self._codec = codec
        self._clients = clients
        self._max_payload_bytes = app.max_payload_bytes
        self._failures = 0

    async def move(self, jobs: list[InFlight], letters: list[DeadLetter]) -> None:
        """Publish them, and say of each whether it goes, stays, or is to be tried again."""
        posts: dict[InFlight, tuple[Address, Post]] = {}
        for job, letter in zip(jobs, letters, strict=True):
            try:
                posts[job] = self._post(letter)
            except _Unmovable as why:
                log.error("dead letter %r of %r stays where it is: %s", letter.id, letter.queue, why)
                job.said = Said("nack", str(why))
        try:
            refused = await self._publish(posts)
        except Exception as error:  # whatever it is, they wait in their list
            log.exception("dead letters of %r could not be moved", f"{self.topic}/{self.group}")
            refused = str(error) or type(error).__name__
            for job in posts:
                job.said = Said("retry")
        if not refused:
            self._failures = 0
            return
        if not self._failures:
            log.warning("dead letters of %r wait for topic %r: %s", f"{self.topic}/{self.group}", self.target.name, refused)
        self._failures += 1
        await asyncio.sleep(PAUSES[min(self._failures, len(PAUSES)) - 1])

    async def _publish(self, posts: dict[InFlight, tuple[Address, Post]]) -> str:
        """What kept some of them from being accepted, if anything did."""
        publisher = self._clients.here().publisher(self.target.address)
        answers = await asyncio.gather(*(publisher.outbox(shard).send(post) for shard, post in posts.values()))
        refused = ""
        for job, answer in zip(posts, answers, strict=True):
            if isinstance(answer, Exception):
                refused = str(answer)
            elif answer[0] is Receipt.FULL:
                refused = f"it keeps max_length={self.target.settings.max_length} events that are not all handled"
            else:
                job.said = Said("ack")
                continue
            job.said = Said("retry")
        return refused

    def _post(self, letter: DeadLetter) -> tuple[Address, Post]:
        """What is published, and where."""
        message = read_message(letter)
        if message is None or letter.reason == "oversize":
            raise _Unmovable(f"it is {letter.reason}: {letter.error.message}")
        try:
            payload = self.target.wire.adopt(message.args, self._codec)
        except (InvalidArguments, TypeError) as error:
            raise _Unmovable(str(error)) from error
        if self._max_payload_bytes is not None and len(payload) > self._max_payload_bytes:
            raise _Unmovable(f"it takes {len(payload):,} bytes, more than max_payload_bytes={self._max_payload_bytes:,}")
        event_id = _id_of(letter)
        moved = Message(
            event_id,
            self.target.name,
            msgspec.Raw(payload),
            message.enqueued_ms,
            given_id=True,
            event=self._fields(message.event or EventFields(), letter),
        )
        address, key = self._route(payload)
        return address, Post(event_id, encode_message(moved), self.target.name, key=key)

    def _route(self, payload: bytes) -> tuple[Address, bytes | None]:
        """Where an event of the other topic goes, and its key there, if that has an order."""
        address, key_of = Address.of_topic(self.target.name), self.target.key_of
        if key_of is None:
            return address, None
        try:
            key = key_of.of_event((self.target.wire.decode(payload),), {})
        except TypeError as error:
            raise _Unmovable(str(error)) from error
        shards = address.shards(self.target.settings.shards)
        return shards[shard_of_key(key, len(shards))], key

    def _fields(self, carried: EventFields, letter: DeadLetter) -> EventFields:
        headers = carried.headers | {
            "dead-reason": letter.reason,
            "dead-error": f"{letter.error.type}: {letter.error.message}"[:ERROR_LIMIT],
            "dead-topic": self.topic,
            "dead-group": self.group,
            "dead-id": letter.id,
            "dead-attempts": str(letter.attempts),
        }
        return msgspec.structs.replace(carried, headers=headers)

    def __repr__(self) -> str:
        return f"<forwarder of group {self.group!r} of topic {self.topic!r} to topic {self.target.name!r}>"


class _Unmovable(Exception):
    """Why a letter stays in its list."""


class _Letters:
    """Calls the forwarder with letters as they are."""

    def decode(self, payload: Payload, /) -> tuple[tuple[Any, ...], dict[str, Any]]:
        raise AssertionError("letters are moved many at once")

    def event(self, payload: Payload) -> DeadLetter:
        return decode_letter(payload)

    def together(self, jobs: list[InFlight], letters: list[DeadLetter]) -> tuple[Any, ...]:
        return jobs, letters


def _id_of(letter: DeadLetter) -> str:
    """The same for the same letter, and for no other: by its group, its entry and when it died."""
    whole = msgspec.msgpack.encode((str(letter.queue), letter.cursor, letter.id, letter.died_at))
    return f"dead-{hashlib.blake2b(whole, digest_size=12).hexdigest()}"


def _nothing() -> None:
    """Nothing is kept of moving."""
