"""What a function returned, as it is kept."""

from __future__ import annotations

from typing import Any

from millstream.codec import encoder, hints
from millstream.codec.encoder import Payload
from millstream.codec.hints import Resolving
from millstream.model.invalid import InvalidResult

_PLAIN = (int, str, bytes, bool, float)
"""Types whose values need no further check once they are known to be of that very class."""


class ResultCodec(Resolving):
    """The result of one function, as it is kept: a value that can be encoded, and decoded into the return annotation.

    Without an annotation, or with Any, a result is what msgpack gives back.
    """

    _checked = False
    """Whether results must fit the annotation; not without one, nor as long as it cannot be resolved."""
    _plain: type | None = None
    """A result of exactly this class fits."""

    def _read_annotations(self) -> None:
        annotation = hints.signature(self._fn, self._task).return_annotation
        kind = hints.resolve(self._fn, annotation, self._names, f"task {self._task!r}: the result")
        self._type = hints.describe(kind)
        self._read = encoder.decoder(kind)
        self._checked = kind is not Any
        self._plain = type(None) if kind is None else kind if kind in _PLAIN else None

    def encode(self, value: Any) -> bytes:
        """The bytes of a return value; InvalidResult if it cannot be encoded, or not be read as the annotated type.

        Hot for None and values of builtin types: those are only compared by class, others are decoded.
        """
        try:
            payload = encoder.encode(value)
        except Exception as error:
            raise InvalidResult(
                f"task {self._task!r}: its result of type {type(value).__qualname__} cannot be encoded: {error}"
            ) from error
        if self._checked and value.__class__ is not self._plain:
            self.decode(payload)
        return payload

    def decode(self, payload: Payload) -> Any:
        """The result in its annotated type; InvalidResult if it is not one."""
        if not self._resolved:
            self.resolve()
        try:
            return self._read(payload)
        except Exception as error:
            raise InvalidResult(f"task {self._task!r}: its result is annotated {self._type}: {error}") from error
