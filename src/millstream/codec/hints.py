"""Resolves the annotations of a signature to types that can be decoded."""

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
    """An annotation refers to a name that does not exist yet. It may exist later, when the module is fully imported."""


class Resolving(ABC):
    """Reads the annotations of a function at its declaration. If a name does not exist yet, it tries again at first use or in
    ``resolve``.

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
        """Resolve the annotations, unless that is already done. Raises UsageError if a name does not exist."""
        if self._resolved:
            return
        self._names |= enclosing_names(self._fn)
        self._read_annotations()
        self._resolved = True
        self._names = {}

    @abstractmethod
    def _read_annotations(self) -> None: ...


def signature(fn: Callable[..., Any], task: str) -> inspect.Signature:
    """Return the signature of a function, with unevaluated annotations."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise UsageError(f"task {task!r} has no readable signature: {error}. Declare a plain function.") from error
    except NameError as error:  # from Python 3.14 on, annotations are evaluated when they are read
        raise Unresolved(f"task {task!r} has an annotation that is not defined: {error}.") from error


def resolve(fn: Callable[..., Any], annotation: Any, names: Mapping[str, Any], what: str) -> Any:
    """Return the type of an annotation of ``fn``, checked to be serializable.

    ``names`` are the local names around ``fn``, and ``what`` describes the annotated item in errors. Raises Unresolved, or
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
        raise UsageError(
            f"{what} is annotated {describe(annotation)}, which cannot be serialized: {error}. {WAY_OUT}"
        ) from error
    if foreign:
        raise UsageError(
            f"{what} is annotated {describe(annotation)}, which cannot be serialized: "
            f"{describe(foreign[0])} has no wire format. {WAY_OUT}"
        )
    return kind


def enclosing_names(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the local names of the running functions that enclose ``fn``. Empty for most functions.

    Under ``from __future__ import annotations`` an annotation is text, so there is no closure that holds its names.
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
    """Return an annotation as source text."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _evaluate(fn: Callable[..., Any], annotation: Any, names: Mapping[str, Any]) -> Any:
    # One annotation at a time, so that a return type that only type checkers know does not break the parameters.
    holder = SimpleNamespace(__annotations__={"it": annotation})
    module = getattr(inspect.unwrap(fn), "__globals__", {})
    return typing.get_type_hints(holder, module, dict(names), include_extras=True)["it"]


def _foreign(info: msginspect.Type) -> Iterator[type[Any]]:
    """Yield every type inside this one that msgspec delegates to hooks."""
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
