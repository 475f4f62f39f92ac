"""Templates: everything that the messages of one task with one set of options have in common."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from msgspec import Raw

from millstream.broker import Post
from millstream.client.outbox import Outbox
from millstream.errors import PayloadTooLarge
from millstream.model.address import Address
from millstream.model.message import CallOverrides, EventFields, Message, encode_message
from millstream.model.ordering import shard_of_key


def new_request() -> str:
    """Return a name for one request, by which the server recognises it if it is resent after a lost reply."""
    return secrets.token_hex(6)


class Packs(Protocol):
    """Encodes the arguments of a caller. Raises TypeError if they do not fit."""

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...


KeyOf = Callable[[tuple[Any, ...], dict[str, Any]], bytes]
"""Returns the ordering key for checked arguments. Raises TypeError if there is none."""


class Template:
    """Creates posts. Durations are seconds and times are epoch seconds; 0 means not set."""

    __slots__ = (
        "_encode",
        "_event",
        "_max_payload_bytes",
        "_overrides",
        "_plain",
        "_task",
        "at",
        "delay",
        "expires",
        "expires_at",
        "id",
        "id_ttl",
        "key",
        "queue",
    )

    def __init__(
        self,
        *,
        task: str,
        queue: Address,
        arguments: Packs,
        max_payload_bytes: int | None,
        id: str = "",
        delay: float = 0.0,
        at: float = 0.0,
        expires: float = 0.0,
        expires_at: float = 0.0,
        overrides: CallOverrides | None = None,
        event: EventFields | None = None,
        key: KeyOf | None = None,
        id_ttl: float | None = None,
    ) -> None:
        self.queue = queue
        """Address of the queue or topic; if it is sharded, of the base queue or topic."""
        self.key = key
        """Function that returns the ordering key, or ``None`` for messages without order."""
        self.id = id
        self.id_ttl = id_ttl
        self.delay = delay
        self.at = at
        self.expires = expires
        self.expires_at = expires_at
        self._task = task
        self._encode = arguments.encode
        self._max_payload_bytes = max_payload_bytes
        self._overrides = overrides
        self._event = event
        self._plain = not (id or delay or at or expires or expires_at or event or key)

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the encoded arguments. Raises TypeError if they do not fit the task, PayloadTooLarge if they are too large."""
        payload = self._encode(args, kwargs)
        if self._max_payload_bytes is not None and len(payload) > self._max_payload_bytes:
            raise PayloadTooLarge(
                f"the payload for {self._task!r} has {len(payload):,} bytes, more than max_payload_bytes="
                f"{self._max_payload_bytes:,}: send a reference to the data instead, or raise the limit"
            )
        return payload

    def shard(self, key: bytes | None, shards: int, turns: Iterator[int]) -> int:
        """Return the shard index of a message: by its key, else by its given id, else round robin."""
        if key is None:
            if not self.id:
                return next(turns) % shards
            key = self.id.encode()
        return shard_of_key(key, shards)

    def post(self, payload: bytes, outbox: Outbox, now_ms: int, key: bytes | None = None) -> Post:
        """Create a post with the given id, or with the outbox's next number. A numbered post must be put into the outbox before
        the next is created."""
        if self._plain:
            serial = outbox.serial = outbox.serial + 1
            job_id = f"{outbox.sender}-{serial}"
            return Post(
                job_id,
                encode_message(Message(job_id, self._task, Raw(payload), now_ms, 1, False, self._overrides)),
                self._task,
                serial,
            )
        job_id, serial = self.id, 0
        if not job_id:
            serial = outbox.serial = outbox.serial + 1
            job_id = f"{outbox.sender}-{serial}"
        message = Message(job_id, self._task, Raw(payload), now_ms, 1, bool(self.id), self._overrides, event=self._event)
        return Post(
            job_id,
            encode_message(message),
            self._task,
            serial,
            self.delay,
            self.at,
            self.expires,
            self.expires_at,
            key,
            new_request() if self.id else "",
            self.id_ttl if self.id else None,
        )
