"""From what is written in a signature to a type that can be decoded."""

from __future__ import annotations

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Never, NoReturn

from msgspec import inspect as msginspect
from msgspec.structs import astuple

from millstream.codec import encoder
from millstream.errors import UsageError

WAY_OUT = (
    "Annotate it with plain values, a dataclass, a TypedDict, a msgspec Struct or a pydantic model, "
    "or with Any and convert it in the function."
)


class Unresolved(UsageError):
    """An annotation names something that does not exist; it may exist later, when the module has been read."""


class Resolving(ABC):
    """Reads the annotations of a function: at its declaration if it can, else at first use, or by ``resolve``.

    Raises UsageError at declaration if an annotation can never be decoded.
    """

    def __init__(self, fn: Callable[..., Any], *, task: str) -> None:
        self._fn = fn
        self._task = task
        self._names: dict[str, Any] = {}
        self._resolved = False
        with suppress(Unresolved):  # tried again at first use
            self.resolve()

    def resolve(self) -> None:
        """Resolve the annotations that are not yet; UsageError if one names what does not exist."""
        if self._resolved:
            return
        self._names |= enclosing_names(self._fn)
        self._read_annotations()
        self._resolved = True
        self._names = {}

    @abstractmethod
    def _read_annotations(self) -> None: ...


def signature(fn: Callable[..., Any], task: str) -> inspect.Signature:
    """The signature of a function, its annotations as they are written."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise UsageError(f"task {task!r} has no readable signature: {error}. Declare a plain function.") from error
    except NameError as error:  # from Python 3.14 on, annotations are evaluated when they are asked for
        raise Unresolved(f"task {task!r} has an annotation that is not defined: {error}.") from error


def resolve(fn: Callable[..., Any], annotation: Any, names: Mapping[str, Any], what: str) -> Any:
    """The type that an annotation of ``fn`` means, checked to be one that travels.

    ``names`` are those of the scopes around ``fn``; ``what`` says in errors what is annotated. Raises Unresolved, or
    UsageError if the type can never be decoded.
    """
    if annotation is inspect.Signature.empty:
        return Any
    try:
        kind = _evaluate(fn, annotation, names)
        if kind in (Never, NoReturn):  # a function that only ever raises
            return None
        if kind is object:
            return Any
        foreign = [kind for kind in _foreign(msginspect.type_info(kind)) if not encoder.travels(kind)]
        encoder.decoder(kind)
    except (NameError, AttributeError) as error:
        raise Unresolved(
            f"{what} is annotated {describe(annotation)}, which is not defined: {error}. Define or import it before "
            f"the task is first used, and not only under TYPE_CHECKING."
        ) from error
    except Exception as error:
        raise UsageError(f"{what} is annotated {describe(annotation)}, which cannot travel: {error}. {WAY_OUT}") from error
    if foreign:
        raise UsageError(
            f"{what} is annotated {describe(annotation)}, which cannot travel: "
            f"{describe(foreign[0])} has no wire form. {WAY_OUT}"
        )
    return kind


def enclosing_names(fn: Callable[..., Any]) -> dict[str, Any]:
    """The local names of the functions that ``fn`` is written in and that are running now; empty for most.

    An annotation under ``from __future__ import annotations`` is text, and leaves no closure to find its names by.
    """
    inner = inspect.unwrap(fn)
    scopes: set[str] = set()
    scope: str = getattr(inner, "__qualname__", "")
    while scope := scope.rpartition(".<locals>.")[0]:
        scopes.add(scope)
    names: dict[str, Any] = {}
    frame = inspect.currentframe() if scopes else None
    while frame is not None:
        if frame.f_code.co_qualname in scopes and frame.f_globals is getattr(inner, "__globals__", None):
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def describe(annotation: Any) -> str:
    """An annotation as its author would write it."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _evaluate(fn: Callable[..., Any], annotation: Any, names: Mapping[str, Any]) -> Any:
    # One annotation at a time, so that a return type only known to type checkers does not spoil the parameters.
    holder = SimpleNamespace(__annotations__={"it": annotation})
    module = getattr(inspect.unwrap(fn), "__globals__", {})
    return typing.get_type_hints(holder, module, dict(names), include_extras=True)["it"]


def _foreign(info: msginspect.Type) -> Iterator[type[Any]]:
    """Every type inside this one that msgspec leaves to hooks."""
    waiting: list[Any] = [info]
    seen: set[int] = set()  # types may contain themselves
    while waiting:
        node = waiting.pop()
        if node.__class__ is tuple:
            waiting += node
        elif isinstance(node, msginspect.CustomType):
            yield node.cls
        elif isinstance(node, msginspect.Type | msginspect.Field) and id(node) not in seen:
            seen.add(id(node))
            waiting += astuple(node)
