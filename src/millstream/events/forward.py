"""The forwarder: publishes the dead letters of a group to another topic."""

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
"""Dead letters per batch."""

PAUSES = (0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts while the target topic is full or unreachable. The last value repeats."""

ERROR_LIMIT = 1_000
"""Maximum length of the error in the ``dead-error`` header, in characters."""

FOR_EVER = 1 << 30
"""``max_crashes`` of the forwarder: forwarding is retried without limit."""


class Forwarder:
    """Forwards the dead letters of a group to its ``dead_letter`` topic.

    A dead letter stays in the list until the target topic has accepted it. Its event id there is derived from the letter, so
    that repeated attempts within ``id_ttl`` publish it once. A letter that cannot be forwarded stays in the list and is not
    tried again.
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
        """Publish the letters, and decide for each whether it is removed, stays, or is tried again."""
        posts: dict[InFlight, tuple[Address, Post]] = {}
        for job, letter in zip(jobs, letters, strict=True):
            try:
                posts[job] = self._post(letter)
            except _Unmovable as why:
                log.error("dead letter %r of %r cannot be forwarded and stays in the list: %s", letter.id, letter.queue, why)
                job.said = Said("nack", str(why))
        try:
            refused = await self._publish(posts)
        except Exception as error:  # the letters stay in the list, whatever the error
            log.exception("dead letters of %r could not be forwarded", f"{self.topic}/{self.group}")
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
        """Publish the letters. Return why the topic refused a letter, or an empty string if it accepted all of them."""
        publisher = self._clients.here().publisher(self.target.address)
        answers = await asyncio.gather(*(publisher.outbox(shard).send(post) for shard, post in posts.values()))
        refused = ""
        for job, answer in zip(posts, answers, strict=True):
            if isinstance(answer, Exception):
                refused = str(answer)
            elif answer[0] is Receipt.FULL:
                refused = f"it is full (max_length={self.target.settings.max_length})"
            else:
                job.said = Said("ack")
                continue
            job.said = Said("retry")
        return refused

    def _post(self, letter: DeadLetter) -> tuple[Address, Post]:
        """Return the event to publish and its address. Raise ``_Unmovable`` if the letter cannot be forwarded."""
        message = read_message(letter)
        if message is None or letter.reason == "oversize":
            raise _Unmovable(f"it is {letter.reason}: {letter.error.message}")
        try:
            payload = self.target.wire.adopt(message.args, self._codec)
        except (InvalidArguments, TypeError) as error:
            raise _Unmovable(str(error)) from error
        if self._max_payload_bytes is not None and len(payload) > self._max_payload_bytes:
            raise _Unmovable(f"it has {len(payload):,} bytes, more than max_payload_bytes={self._max_payload_bytes:,}")
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
        """Return the address in the target topic, and the ordering key there (``None`` if the topic is not ordered)."""
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
    """The letter cannot be forwarded. The message says why."""


class _Letters:
    """Passes dead letters to the forwarder without decoding their events."""

    def decode(self, payload: Payload, /) -> tuple[tuple[Any, ...], dict[str, Any]]:
        raise AssertionError("dead letters are forwarded in batches only")

    def event(self, payload: Payload) -> DeadLetter:
        return decode_letter(payload)

    def together(self, jobs: list[InFlight], letters: list[DeadLetter]) -> tuple[Any, ...]:
        return jobs, letters


def _id_of(letter: DeadLetter) -> str:
    """Return an id that is unique for the letter and always the same: made from its group, entry, id and time of death."""
    whole = msgspec.msgpack.encode((str(letter.queue), letter.cursor, letter.id, letter.died_at))
    return f"dead-{hashlib.blake2b(whole, digest_size=12).hexdigest()}"


def _nothing() -> None:
    """The signature for the result codec: forwarding stores no result."""
