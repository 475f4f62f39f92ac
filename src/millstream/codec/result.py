"""Encoding of the result of a function."""

from __future__ import annotations

from typing import Any

from millstream.codec import encoder, hints
from millstream.codec.encoder import Payload
from millstream.codec.hints import Resolving
from millstream.model.invalid import InvalidResult

_PLAIN = (int, str, bytes, bool, float)
"""Types whose values need no check beyond the comparison of their class."""


class ResultCodec(Resolving):
    """Encodes the result of one function, and decodes it into the type of the return annotation.

    Without an annotation, or with Any, a result is decoded to msgpack types.
    """

    _checked = False
    """Whether results are checked against the annotation. False without an annotation or while it is unresolved."""
    _plain: type | None = None
    """A result of exactly this class needs no check."""

    def _read_annotations(self) -> None:
        annotation = hints.signature(self._fn, self._task).return_annotation
        kind = hints.resolve(self._fn, annotation, self._names, f"task {self._task!r}: the result")
        self._type = hints.describe(kind)
        self._read = encoder.decoder(kind)
        self._checked = kind is not Any
        self._plain = type(None) if kind is None else kind if kind in _PLAIN else None

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a return value. Raises InvalidResult if it cannot be encoded, or not decoded as the annotated
        type.

        Hot for None and values of builtin types: only their class is compared. Other values are decoded as a check.
        """
        try:
            payload = encoder.encode(value)
        except Exception as error:
            raise InvalidResult(
                f"task {self._task!r}: the result of type {type(value).__qualname__} cannot be encoded: {error}"
            ) from error
        if self._checked and value.__class__ is not self._plain:
            self.decode(payload)
        return payload

    def decode(self, payload: Payload) -> Any:
        """Return the result in its annotated type. Raises InvalidResult if it does not fit."""
        if not self._resolved:
            self.resolve()
        try:
            return self._read(payload)
        except Exception as error:
            raise InvalidResult(f"task {self._task!r}: the result does not fit its annotation {self._type}: {error}") from error
