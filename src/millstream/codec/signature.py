"""The parameters of one function. Binds arguments to them one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import msgspec
from msgspec import Raw

from millstream.codec import encoder, hints
from millstream.codec.encoder import Payload
from millstream.codec.hints import Unresolved
from millstream.model.invalid import InvalidArguments

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""
Form = tuple[Any, ...] | dict[str, Any]
"""A call in its wire form: an array of the positional arguments, or a map by keyword."""

POSITIONS = ""
"""The key of the positional arguments in a map. No parameter can have this name."""

_read_form: Callable[[Payload], list[Raw] | dict[str, Raw]] = msgspec.msgpack.Decoder(list[Raw] | dict[str, Raw]).decode
_read_positions: Callable[[Payload], list[Raw]] = msgspec.msgpack.Decoder(list[Raw]).decode
_NO_POSITIONS = Raw(b"\x90")


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter and its type."""

    name: str
    type: Any
    """The annotation, resolved and checked."""
    by_keyword: bool
    required: bool
    decode: Callable[[Payload], Any]

    def __str__(self) -> str:
        return hints.describe(self.type)


class Signature:
    """The parameters of one function. Supports every kind of parameter, and finds the argument that does not fit."""

    def __init__(self, task: str, slots: Mapping[Any, list[Slot]]) -> None:
        self._task = task
        self.positional = slots.get(Parameter.POSITIONAL_ONLY, []) + slots.get(Parameter.POSITIONAL_OR_KEYWORD, [])
        self.keyword_only = slots.get(Parameter.KEYWORD_ONLY, [])
        self.by_keyword = {slot.name: slot for slot in self.positional + self.keyword_only if slot.by_keyword}
        self.rest: Slot | None = next(iter(slots.get(Parameter.VAR_POSITIONAL, [])), None)
        self.extra: Slot | None = next(iter(slots.get(Parameter.VAR_KEYWORD, [])), None)

    @classmethod
    def of(cls, fn: Callable[..., Any], task: str, names: Mapping[str, Any]) -> Signature:
        """Read a function's signature. ``names`` are the local names around it. Raises UsageError or Unresolved."""
        slots: dict[Any, list[Slot]] = {}
        unresolved: list[Unresolved] = []
        for parameter in hints.signature(fn, task).parameters.values():
            what = f"task {task!r}: parameter {parameter.name!r}"
            try:
                kind = hints.resolve(fn, parameter.annotation, names, what)
            except Unresolved as error:
                unresolved.append(error)  # the other parameters are still checked
                continue
            slot = Slot(
                name=parameter.name,
                type=kind,
                by_keyword=parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY),
                required=parameter.default is Parameter.empty,
                decode=encoder.decoder(kind),
            )
            slots.setdefault(parameter.kind, []).append(slot)
        if unresolved:
            raise unresolved[0]
        return cls(task, slots)

    def form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form:
        """Return the wire form of a call: an array if its keywords continue the positions, else a map."""
        if POSITIONS in kwargs:
            raise TypeError(f"task {self._task!r}: {POSITIONS!r} is not a valid argument name")
        remaining = dict(kwargs)
        continued: list[Any] = []
        for slot in self.positional[len(args) :]:
            if not slot.by_keyword or slot.name not in remaining:
                break
            continued.append(remaining.pop(slot.name))
        if continued:
            args = (*args, *continued)
        if not remaining:
            return args
        return {POSITIONS: args, **remaining} if args else remaining

    def bind(self, payload: Payload) -> Arguments:
        """Decode the arguments of a payload one by one. Raises InvalidArguments that names the argument that does not fit."""
        try:
            form = _read_form(payload)
            if isinstance(form, list):
                positions, keywords = form, dict[str, Raw]()
            else:
                positions, keywords = _read_positions(form.pop(POSITIONS, _NO_POSITIONS)), form
        except Exception as error:  # msgspec's own, or UnicodeDecodeError
            raise InvalidArguments(f"task {self._task!r}: the payload is not the arguments of a call: {error}") from error
        self._match(len(positions), keywords)
        args = tuple([self._decode(key, raw) for key, raw in enumerate(positions)])
        return args, {key: self._decode(key, raw) for key, raw in keywords.items()}

    def name(self, key: int | str) -> str:
        """Return the name of the argument at a position or keyword, for errors."""
        if isinstance(key, str):
            return key
        if key < len(self.positional):
            return self.positional[key].name
        return f"{self.rest.name}[{key - len(self.positional)}]" if self.rest else f"number {key + 1}"

    def _match(self, positions: int, keywords: Mapping[str, Raw]) -> None:
        """Check that every argument has a parameter, and every required parameter an argument."""
        if positions > len(self.positional) and self.rest is None:
            raise self._misfit(f"too many positional arguments: got {positions}, expected at most {len(self.positional)}")
        for name in keywords:
            if name not in self.by_keyword and self.extra is None:
                takes = ", ".join(self.by_keyword) or "no keywords"
                raise self._misfit(f"unexpected argument {name!r}; it takes {takes}")
        for slot in self.positional[:positions]:
            if slot.by_keyword and slot.name in keywords:
                raise self._misfit(f"two values for argument {slot.name!r}")
        for slot in self.positional[positions:] + self.keyword_only:
            if slot.required and not (slot.by_keyword and slot.name in keywords):
                raise self._misfit(f"missing argument {slot.name!r}, which must be {slot}")

    def _decode(self, key: int | str, raw: Raw) -> Any:
        if isinstance(key, str):
            slot = self.by_keyword.get(key, self.extra)
        else:
            slot = self.positional[key] if key < len(self.positional) else self.rest
        assert slot is not None, "_match refuses arguments without a parameter"
        try:
            return slot.decode(raw)
        except Exception as error:
            name = self.name(key)
            reason = str(error).replace("`$", f"`{name}")  # msgspec appends the path: "- at `$.items[0]`"
            raise self._misfit(f"argument {name!r} must be {slot}: {reason}", key) from error

    def _misfit(self, reason: str, key: int | str | None = None) -> InvalidArguments:
        return InvalidArguments(f"task {self._task!r}: {reason}", key)
