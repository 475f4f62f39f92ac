"""What one task with one set of options sends: everything about a job but its arguments and its number."""

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
    """A name for one request: sent again after a lost reply, it is recognised."""
    return secrets.token_hex(6)


class Packs(Protocol):
    """Turns what a caller gave into bytes, or says what is wrong with it: TypeError."""

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...


KeyOf = Callable[[tuple[Any, ...], dict[str, Any]], bytes]
"""The key of what a caller gave, once that is known to fit; TypeError if it has none."""


class Template:
    """Makes posts. Durations in seconds, moments in epoch seconds; 0: not set."""

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
        """The whole's address, if it has shards."""
        self.key = key
        """None: what is sent is in no order."""
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
        """The arguments as they travel. TypeError if they do not fit the task, PayloadTooLarge if they are too many bytes."""
        payload = self._encode(args, kwargs)
        if self._max_payload_bytes is not None and len(payload) > self._max_payload_bytes:
            raise PayloadTooLarge(
                f"what is sent to {self._task!r} takes {len(payload):,} bytes, and max_payload_bytes is "
                f"{self._max_payload_bytes:,}: send a reference to the data instead, or raise the limit"
            )
        return payload

    def shard(self, key: bytes | None, shards: int, turns: Iterator[int]) -> int:
        """Which of so many shards a message goes to: by its key, else by its given id, else to each in turn."""
        if key is None:
            if not self.id:
                return next(turns) % shards
            key = self.id.encode()
        return shard_of_key(key, shards)

    def post(self, payload: bytes, outbox: Outbox, now_ms: int, key: bytes | None = None) -> Post:
        """A post with the given id, or with the outbox's next number; that one must be put in before the next is made."""
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
