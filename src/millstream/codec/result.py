"""What a function returned, as it is kept."""

from __future__ import annotations

from typing import Any

from millstream.codec import hints, wire
from millstream.codec.hints import Resolving
from millstream.codec.wire import Payload


class InvalidResult(Exception):
    """A return value that cannot be encoded, or a kept one that is not of the annotated type."""


class ResultCodec(Resolving):
    """The result of one function, as it is kept: any value that can be encoded, decoded into the return annotation.

    Without an annotation, or with Any, a result is what msgpack gives back.
    """

    def _read_annotations(self) -> None:
        annotation = hints.signature(self._fn, self._task).return_annotation
        kind = hints.resolve(self._fn, annotation, self._names, f"task {self._task!r}: the result")
        self._type = hints.describe(kind)
        self._read = wire.decoder(kind)

    def encode(self, value: Any) -> bytes:
        """The bytes of a return value; InvalidResult if it cannot be encoded. Its type is not checked."""
        try:
            return wire.encode(value)
        except Exception as error:
            raise InvalidResult(
                f"task {self._task!r}: its result of type {type(value).__qualname__} cannot be encoded: {error}"
            ) from error

    def decode(self, payload: Payload) -> Any:
        """The result in its annotated type; InvalidResult if it is not one."""
        if not self._resolved:
            self.resolve()
        try:
            return self._read(payload)
        except Exception as error:
            raise InvalidResult(f"task {self._task!r}: its result is annotated {self._type}: {error}") from error
