"""Arguments and results of a function, and their encoded form."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, NoReturn, Optional, TypedDict, Union
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.codec import ArgumentCodec, ResultCodec
from millstream.errors import UsageError
from millstream.model.invalid import InvalidArguments, InvalidResult

if TYPE_CHECKING:
    from fractions import Fraction


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Rights(IntFlag):
    READ = 1
    WRITE = 2


class Halves(Enum):
    ONE = 0.5


class Point(NamedTuple):
    x: int
    y: int = 0


class Address(TypedDict):
    street: str
    number: int


@dataclass
class Item:
    name: str
    price: Decimal


@dataclass
class Order:
    id: UUID
    items: list[Item]
    placed: datetime | None = None
    notes: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tree:
    value: int
    children: tuple[Tree, ...] = ()


@dataclass
class Positive:
    value: int

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError(f"{self.value} is not positive")


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class User(pydantic.BaseModel):
    id: UUID
    name: str
    born: date | None = None
    tags: set[str] = set()
    balance: Decimal = Decimal(0)


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    id: UUID
    seen: tuple[datetime, ...]


class Site(pydantic.BaseModel):
    url: pydantic.HttpUrl
    folder: Path


class Aliased(pydantic.BaseModel):
    plain: int = pydantic.Field(alias="Plain")
    inbound: int = pydantic.Field(validation_alias="in")
    outbound: int = pydantic.Field(serialization_alias="out")


class Squared(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    side: int

    @pydantic.computed_field
    def area(self) -> int:
        return self.side**2


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


@dataclass
class Team:
    lead: User
    members: dict[str, User]


UserId = NewType("UserId", int)
Small = Annotated[int, msgspec.Meta(lt=10)]


TEXT = st.text("aé漢\U0001f600\0 ", max_size=6)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | TEXT | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.sampled_from(["value", "width"]), inner, max_size=3),
)
"""Any value that msgpack can encode."""


def resize(image_id: int, width: int = 800) -> str:
    return ""


def taking(annotation: Any) -> ArgumentCodec:
    """Return the argument codec of a function ``t`` with one parameter ``value`` of this annotation."""

    def t(value: Any) -> None: ...

    t.__annotations__["value"] = annotation
    return ArgumentCodec(t, task="t")


def returning(annotation: Any) -> ResultCodec:
    """Return the result codec of a function ``t`` with this annotation."""

    def t() -> Any: ...

    t.__annotations__["return"] = annotation
    return ResultCodec(t, task="t")


def there_and_back(codec: ArgumentCodec, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return codec.decode(codec.encode(args, kwargs))


def wire(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


# The wire form


@pytest.mark.parametrize(
    ("args", "kwargs", "written"),
    [
        ((42,), {}, [42]),
        ((42, 100), {}, [42, 100]),
        ((42,), {"width": 100}, [42, 100]),
        ((), {"width": 100, "image_id": 42}, [42, 100]),
    ],
)
def test_positional_arguments_and_the_keywords_that_continue_them_are_encoded_as_an_array(
    args: Any, kwargs: Any, written: Any
) -> None:
    assert ArgumentCodec(resize, task="resize").encode(args, kwargs) == wire(written)


def test_one_small_argument_is_encoded_in_two_bytes() -> None:
    assert len(ArgumentCodec(resize, task="resize").encode((42,), {})) == 2


def test_other_keywords_are_a_map_with_the_positional_arguments_under_the_empty_name() -> None:
    def crop(image_id: int, left: int = 0, top: int = 0, *, exact: bool = False) -> None: ...

    codec = ArgumentCodec(crop, task="crop")
    assert codec.encode((42,), {"top": 5}) == wire({"": [42], "top": 5})
    assert codec.encode((), {"exact": True, "image_id": 42}) == wire({"": [42], "exact": True})
    assert there_and_back(codec, 42, top=5, exact=True) == ((42,), {"top": 5, "exact": True})


def test_defaults_are_not_sent_so_the_defaults_of_the_worker_apply() -> None:
    def later(image_id: int, width: int = 900, height: int = 600) -> None: ...

    payload = ArgumentCodec(resize, task="resize").encode((42,), {})
    assert ArgumentCodec(later, task="resize").decode(payload) == ((42,), {})


def test_a_keyword_still_finds_its_parameter_after_the_signature_changed() -> None:
    def before(a: int = 0, b: int = 0) -> None: ...
    def after(b: int) -> None: ...

    payload = ArgumentCodec(before, task="t").encode((), {"b": 5})
    assert ArgumentCodec(after, task="t").decode(payload) == ((), {"b": 5})


@pytest.mark.parametrize("view", [bytes, memoryview, msgspec.Raw])
def test_a_payload_may_be_bytes_a_memoryview_or_raw(view: Callable[[bytes], Any]) -> None:
    codec = ArgumentCodec(resize, task="resize")
    assert codec.decode(view(codec.encode((42,), {"width": 1}))) == ((42, 1), {})


# Kinds of parameters


def test_a_function_without_parameters_accepts_an_empty_call() -> None:
    def nothing() -> None: ...

    codec = ArgumentCodec(nothing, task="nothing")
    assert codec.encode((), {}) == b"\x90"
    assert there_and_back(codec) == ((), {})


def test_the_name_of_a_positional_only_parameter_may_be_used_as_a_keyword() -> None:
    def tag(image_id: int, /, note: str = "", **image: str) -> None: ...

    codec = ArgumentCodec(tag, task="tag")
    assert there_and_back(codec, 1, image_id="x") == ((1,), {"image_id": "x"})
    assert there_and_back(codec, 1, note="n", image_id="x") == ((1, "n"), {"image_id": "x"})


def test_a_positional_only_parameter_cannot_be_passed_by_name() -> None:
    def tag(image_id: int, /) -> None: ...

    with pytest.raises(TypeError, match="task 'tag': unexpected argument 'image_id'; it takes no keywords"):
        ArgumentCodec(tag, task="tag").encode((), {"image_id": 1})


def test_variadic_arguments_have_their_annotated_type() -> None:
    def notify(text: str, *users: UUID, **levels: Level) -> None: ...

    codec = ArgumentCodec(notify, task="notify")
    call = ("hi", UUID(int=1), UUID(int=2))
    assert there_and_back(codec, *call, mail=Level.HIGH) == (call, {"mail": Level.HIGH})
    assert there_and_back(codec, "hi") == (("hi",), {})
    with pytest.raises(TypeError, match=r"task 'notify': argument 'users\[1\]' must be uuid.UUID: .*; the value was 'x'"):
        codec.encode(("hi", UUID(int=1), "x"), {})
    with pytest.raises(TypeError, match=r"task 'notify': argument 'mail' must be .*Level: .*; the value was 3"):
        codec.encode(("hi",), {"mail": 3})


def test_a_required_keyword_is_checked_when_encoding_and_when_decoding() -> None:
    def crop(image_id: int, *, width: int) -> None: ...

    codec = ArgumentCodec(crop, task="crop")
    assert there_and_back(codec, 1, width=2) == ((1,), {"width": 2})
    with pytest.raises(TypeError, match="task 'crop': missing argument 'width', which must be int"):
        codec.encode((1,), {})
    with pytest.raises(InvalidArguments, match="task 'crop': missing argument 'width', which must be int"):
        codec.decode(wire([1]))


def test_a_wrapped_function_has_the_signature_of_the_original() -> None:
    @functools.wraps(resize)
    def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    with pytest.raises(TypeError, match="argument 'image_id' must be int"):
        ArgumentCodec(wrapper, task="resize").encode(("x",), {})
    assert ResultCodec(wrapper, task="resize").decode(wire("a")) == "a"


# Calls refused at enqueue


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "task 'resize': missing argument 'image_id', which must be int"),
        ((), {"width": 1}, "task 'resize': missing argument 'image_id', which must be int"),
        ((1, 2, 3), {}, "task 'resize': too many positional arguments: got 3, expected at most 2"),
        ((1,), {"witdh": 2}, "task 'resize': unexpected argument 'witdh'; it takes image_id, width"),
        ((1,), {"image_id": 2}, "task 'resize': two values for argument 'image_id'"),
        ((1,), {"": 2}, "task 'resize': '' is not a valid argument name"),
        (("x",), {}, "task 'resize': argument 'image_id' must be int: Expected `int`, got `str`; the value was 'x'"),
        ((1,), {"width": None}, "task 'resize': argument 'width' must be int: Expected `int`, got `None`; the value was None"),
        ((True,), {}, "task 'resize': argument 'image_id' must be int: Expected `int`, got `bool`; the value was True"),
        ((1.5,), {}, "task 'resize': argument 'image_id' must be int: Expected `int`, got `float`; the value was 1.5"),
    ],
)
def test_an_invalid_call_raises_type_error_naming_task_argument_type_and_value(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(TypeError) as refused:
        ArgumentCodec(resize, task="resize").encode(args, kwargs)
    assert str(refused.value) == message


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 1 << 20_000], ids=["over", "under", "unprintable"])
def test_an_int_beyond_64_bits_is_refused_at_enqueue(number: int) -> None:
    codec = ArgumentCodec(resize, task="resize")
    with pytest.raises(TypeError, match="task 'resize': argument 'width' cannot be encoded: an int must fit in 64 bits"):
        codec.encode((1,), {"width": number})


@pytest.mark.parametrize("number", [2**64 - 1, 2**63, -(2**63)])
def test_an_int_of_64_bits_is_accepted(number: int) -> None:
    assert there_and_back(taking(int), number) == ((number,), {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "a value of type object cannot be serialized"),
        ([{"deep": 1j}], "a value of type complex cannot be serialized"),
        (iter([1]), "a value of type list_iterator cannot be serialized"),
        ("\ud800", "surrogates not allowed"),
        (msgspec.UNSET, "a value of type UnsetType cannot be serialized"),
    ],
)
def test_a_value_that_cannot_be_encoded_is_refused_and_the_argument_is_named(value: Any, reason: str) -> None:
    def t(first: int, second: Any, **more: Any) -> None: ...

    codec = ArgumentCodec(t, task="t")
    with pytest.raises(TypeError, match=f"task 't': argument 'second' cannot be encoded: .*{reason}.*; the value was "):
        codec.encode((1, value), {})
    with pytest.raises(TypeError, match=f"task 't': argument 'third' cannot be encoded: .*{reason}.*; the value was "):
        codec.encode((1, 2), {"third": value})


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match=r"task 't': argument 'value' cannot be encoded: .*recursion"):
        taking(Any).encode((loop,), {})


def test_an_error_names_the_path_inside_an_argument() -> None:
    order = Order(UUID(int=1), [Item("a", Decimal(1)), Item("b", "much")])  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"argument 'value' must be .*Order: .* - at `value.items\[1\].price`; the value was Order\("
    ):
        taking(Order).encode((order,), {})


def test_an_error_shows_the_start_and_end_of_a_long_value() -> None:
    with pytest.raises(TypeError) as refused:
        taking(int).encode(("a" * 10_000 + "z",), {})
    assert len(str(refused.value)) < 200
    assert str(refused.value).endswith("aaaz'")


def test_constraints_and_post_init_are_checked_at_enqueue() -> None:
    with pytest.raises(TypeError, match=r"argument 'value' must be .*: Expected `int` <= 9; the value was 12"):
        taking(Small).encode((12,), {})
    bad = Positive(1)
    bad.value = -1
    with pytest.raises(TypeError, match=r"argument 'value' must be .*Positive: -1 is not positive"):
        taking(Positive).encode((bad,), {})


def test_any_exception_raised_by_a_users_class_refuses_the_call() -> None:
    @dataclass
    class Moody:
        fine: bool = True

        def __post_init__(self) -> None:
            if not self.fine:
                raise LookupError("not today")

    moody = Moody()
    moody.fine = False
    with pytest.raises(TypeError, match=r"argument 'value' must be .*Moody: not today"):
        taking(Moody).encode((moody,), {})
    with pytest.raises(InvalidArguments, match=r"argument 'value' must be .*Moody: not today"):
        taking(Moody).decode(wire([{"fine": False}]))


# Payloads refused by the worker


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (wire([]), "task 'resize': missing argument 'image_id', which must be int"),
        (wire({"width": 1}), "task 'resize': missing argument 'image_id', which must be int"),
        (wire([1, 2, 3]), "task 'resize': too many positional arguments: got 3, expected at most 2"),
        (wire(["x"]), "task 'resize': argument 'image_id' must be int: Expected `int`, got `str`"),
        (wire({"": [1], "width": "x"}), "task 'resize': argument 'width' must be int: Expected `int`, got `str`"),
        (wire({"": [1], "crop": 2}), "task 'resize': unexpected argument 'crop'; it takes image_id, width"),
        (wire({"": [1], "image_id": 2}), "task 'resize': two values for argument 'image_id'"),
        (wire({"": 1}), "task 'resize': the payload is not the arguments of a call: Expected `array`, got `int`"),
        (
            wire({1: 2}),
            "task 'resize': the payload is not the arguments of a call: Expected `str`, got `int` - at `key` in `$`",
        ),
        (wire(None), "task 'resize': the payload is not the arguments of a call: Expected `object | array`, got `None`"),
        (b"", "task 'resize': the payload is not the arguments of a call: Input data was truncated"),
        (b"\x91", "task 'resize': the payload is not the arguments of a call: Input data was truncated"),
        (
            b"\x91\x01\x01",
            "task 'resize': the payload is not the arguments of a call: MessagePack data is malformed: trailing ",
        ),
    ],
)
def test_an_invalid_payload_raises_invalid_arguments_with_the_reason(payload: bytes, message: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        ArgumentCodec(resize, task="resize").decode(payload)
    assert str(refused.value).startswith(message)


@settings(deadline=None)
@given(st.binary(max_size=40) | VALUES.map(wire))
@example(b"\x81\xa1\x80")  # a keyword that is not UTF-8
@example(b"\x91\xa1\x80")
def test_decoding_any_bytes_raises_nothing_but_invalid_arguments(payload: bytes) -> None:
    for codec in (ArgumentCodec(resize, task="t"), taking(Order), taking(list[User])):
        try:
            codec.decode(payload)
        except InvalidArguments as error:
            assert str(error).startswith("task 't': ")


# Types

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    None: st.none(),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    str: TEXT,
    bytes: st.binary(),
    datetime: st.datetimes(
        datetime(2, 1, 1),
        datetime(9998, 1, 1),
    )
    | st.datetimes(
        datetime(2, 1, 1),
        datetime(9998, 1, 1),
        timezones=st.integers(-720, 840).map(lambda minutes: timezone(timedelta(minutes=minutes))),
    ),
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(),
    UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Rights: st.sampled_from([Rights.READ, Rights.READ | Rights.WRITE]),
    UserId: st.integers(0, 9),
    Literal["a", "b"]: st.sampled_from(["a", "b"]),
    Literal[1, 2]: st.sampled_from([1, 2]),
    Path: st.just(Path("a/b")),
    IPv4Address: st.ip_addresses(v=4),
    Point: st.builds(Point, st.integers(0, 9), st.integers(0, 9)),
    Tree: st.builds(Tree, st.integers(0, 9), st.tuples(st.builds(Tree, st.integers(0, 9)))),
}
HASHABLE = [kind for kind in SCALARS if kind is not None]
LIST: Any = list
TUPLE: Any = tuple
SET: Any = set
FROZENSET: Any = frozenset
DICT: Any = dict
OPTIONAL: Any = Optional


def records(kind: Any) -> st.SearchStrategy[Any]:
    """Generate values of the types that have fields."""
    items = st.builds(Item, TEXT, st.decimals(allow_nan=False))
    users = st.builds(User, id=st.uuids(), name=TEXT, born=st.none() | st.dates(), tags=st.sets(TEXT))
    return {
        Address: st.fixed_dictionaries({"street": TEXT, "number": st.integers(0, 9)}),
        Order: st.builds(Order, st.uuids(), st.lists(items), st.none() | st.datetimes(timezones=st.just(UTC))),
        User: users,
        Team: st.builds(Team, users, st.dictionaries(TEXT, users)),
        Cat | Dog: st.builds(Cat, st.integers(0, 9)) | st.builds(Dog, TEXT),
    }[kind]


@st.composite
def annotated(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """Generate an annotation and a strategy for its values."""
    shape = draw(st.sampled_from(["scalar", "record", "list", "tuple", "pair", "set", "frozenset", "dict", "optional"]))
    key = draw(st.sampled_from(HASHABLE))
    if depth == 0 or shape == "scalar":
        return key, SCALARS[key]
    if shape == "record":
        kind = draw(st.sampled_from([Address, Order, User, Team, Cat | Dog]))
        return kind, records(kind)
    if shape == "set":
        return SET[key], st.sets(SCALARS[key], max_size=3)
    if shape == "frozenset":
        return FROZENSET[key], st.frozensets(SCALARS[key], max_size=3)
    inner, values = draw(annotated(depth - 1))
    if shape == "tuple":
        return TUPLE[inner, ...], st.lists(values, max_size=3).map(tuple)
    if shape == "pair":
        return TUPLE[inner, key], st.tuples(values, SCALARS[key])
    if shape == "dict":
        return DICT[key, inner], st.dictionaries(SCALARS[key], values, max_size=3)
    if shape == "list":
        return LIST[inner], st.lists(values, max_size=3)
    return OPTIONAL[inner], st.none() | values


@settings(deadline=None)
@given(st.data())
def test_an_annotated_value_is_decoded_unchanged(data: st.DataObject) -> None:
    kind, values = data.draw(annotated())
    value = data.draw(values)
    ((back,), _) = there_and_back(taking(kind), value)
    assert back == value
    assert type(back) is type(value)
    results = returning(kind)
    assert results.decode(results.encode(value)) == value


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=5), st.dictionaries(st.sampled_from("abcde"), st.integers(0, 9), max_size=5))
def test_exactly_the_calls_that_python_accepts_are_encoded_and_bind_the_same_way(
    args: list[int], kwargs: dict[str, int]
) -> None:
    def plain(a: int, b: int, c: int = 0) -> Any: ...
    def keyword(a: int, /, b: int = 0, *, c: int = 0) -> Any: ...
    def demanding(a: int = 0, *, b: int, c: int = 0) -> Any: ...
    def variadic(a: int, b: int = 0, *rest: int, c: int = 0, **extra: int) -> Any: ...

    for fn in (plain, keyword, demanding, variadic):
        codec = ArgumentCodec(fn, task="t")
        try:
            bound = inspect.signature(fn).bind(*args, **kwargs)
        except TypeError:
            with pytest.raises(TypeError, match="task 't': "):
                codec.encode(tuple(args), kwargs)
        else:
            sent, named = there_and_back(codec, *args, **kwargs)
            assert inspect.signature(fn).bind(*sent, **named) == bound


def test_an_aware_datetime_is_decoded_as_the_same_instant_in_utc() -> None:
    athens = datetime(2024, 6, 1, 12, tzinfo=timezone(timedelta(hours=3)))
    ((back,), _) = there_and_back(taking(datetime), athens)
    assert (back, back.tzinfo) == (athens, UTC)


def test_a_value_with_the_same_encoded_form_is_accepted() -> None:
    assert there_and_back(taking(float), 3) == ((3.0,), {})
    assert there_and_back(taking(datetime), "2024-01-01T00:00:00Z") == ((datetime(2024, 1, 1, tzinfo=UTC),), {})
    assert there_and_back(taking(Item), {"name": "a", "price": "1.5"}) == ((Item("a", Decimal("1.5")),), {})


@pytest.mark.parametrize("annotation", [Any, object, inspect.Parameter.empty])
def test_without_an_annotation_a_value_is_decoded_as_plain_msgpack(annotation: Any) -> None:
    codec = taking(annotation)
    for sent, back in [
        (None, None),
        ({"a": [1, 2.5, b"x"]}, {"a": [1, 2.5, b"x"]}),
        ({(1, 2): 3}, {(1, 2): 3}),
        (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)),
        ((1, 2), [1, 2]),
        ({1}, [1]),
        (Colour.RED, "red"),
        (Decimal("1.5"), "1.5"),
        (UUID(int=1), str(UUID(int=1))),
        (date(2024, 1, 1), "2024-01-01"),
        (Item("a", Decimal(1)), {"name": "a", "price": "1"}),
        (Squared(side=2), {"side": 2}),
    ]:
        assert there_and_back(codec, sent) == ((back,), {})


def test_subclasses_of_plain_types_are_encoded_like_their_base_type() -> None:
    class Text(str): ...

    class Number(int): ...

    class Real(float): ...

    class Blob(bytes): ...

    class Moment(datetime): ...

    class Key(UUID): ...

    class Rows(dict[str, int]): ...

    for kind, value in [
        (str, Text("a")),
        (int, Number(1)),
        (float, Real(1.5)),
        (bytes, Blob(b"x")),
        (datetime, Moment(2024, 1, 1, tzinfo=UTC)),
        (UUID, Key(int=1)),
        (dict[str, int], Rows(a=1)),
    ]:
        ((back,), _) = there_and_back(taking(kind), value)
        assert back == value


# Pydantic


@pytest.mark.parametrize("annotation", [User, list[User], dict[str, User], User | None, Team])
def test_a_pydantic_model_can_be_sent_alone_and_inside_other_types(annotation: Any) -> None:
    user = User(id=UUID(int=1), name="Ada", born=date(1815, 12, 10), tags={"a"}, balance=Decimal("1.50"))
    value: Any = {list[User]: [user], dict[str, User]: {"a": user}, Team: Team(user, {"a": user})}.get(annotation, user)
    assert there_and_back(taking(annotation), value) == ((value,), {})


def test_a_strict_pydantic_model_can_be_sent_although_msgpack_has_fewer_types() -> None:
    value = Strict(id=UUID(int=1), seen=(datetime(2024, 1, 1, tzinfo=UTC),))
    assert there_and_back(taking(Strict), value) == ((value,), {})


def test_a_pydantic_model_with_urls_and_paths_can_be_sent() -> None:
    value = Site(url="https://example.com/a", folder="/srv")  # type: ignore[arg-type]
    assert there_and_back(taking(Site), value) == ((value,), {})


@pytest.mark.skipif(
    "by_name" not in inspect.signature(pydantic.BaseModel.model_validate).parameters, reason="needs pydantic 2.11"
)
def test_a_pydantic_model_is_encoded_by_field_name_regardless_of_aliases() -> None:
    value = Aliased.model_validate({"Plain": 1, "in": 2, "outbound": 3})
    codec = taking(Aliased)
    assert there_and_back(codec, value) == ((value,), {})
    assert codec.encode((value,), {}) == wire([{"plain": 1, "inbound": 2, "outbound": 3}])


def test_computed_fields_are_not_sent() -> None:
    assert there_and_back(taking(Squared), Squared(side=2)) == ((Squared(side=2),), {})


def test_a_secret_value_is_refused_and_not_shown() -> None:
    with pytest.raises(TypeError, match="argument 'value' cannot be encoded: a value of type SecretStr") as refused:
        taking(Login).encode((Login(password=pydantic.SecretStr("hunter2")),), {})
    assert "hunter2" not in str(refused.value)


def test_a_validation_error_of_a_model_is_passed_on() -> None:
    with pytest.raises(TypeError, match=r"argument 'value' must be .*User: (.|\n)*valid UUID"):
        taking(User).encode(({"id": "x", "name": "Ada"},), {})
    with pytest.raises(InvalidArguments, match=r"argument 'value' must be list\[.*User\]: (.|\n)*valid UUID"):
        taking(list[User]).decode(wire([[{"id": "x", "name": "Ada"}]]))


def test_pydantic_is_not_imported_unless_it_is_used() -> None:
    program = (
        "import sys, millstream.codec as c\n"
        "def f(a, b: list[int]): ...\n"
        "codec = c.ArgumentCodec(f, task='f')\n"
        "assert codec.decode(codec.encode((1, [2]), {})) == ((1, [2]), {})\n"
        "try: codec.encode((object(), []), {})\n"
        "except TypeError: pass\n"
        "print([name for name in sys.modules if name.startswith('pydantic')])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


# Declarations


@pytest.mark.parametrize(
    ("annotation", "named"),
    [
        (complex, "complex"),
        (list[complex], r"list\[complex\]"),
        (Callable[[int], int], "Callable"),
        (Iterable[int], r"Iterable\[int\]"),
        (Union[datetime, str], "datetime"),  # noqa: UP007
        (User | int, "User"),
        (Item | Order, "Item"),
        (Halves, "Halves"),
        (subprocess.Popen, "Popen"),
    ],
)
def test_an_unsupported_annotation_is_refused_at_declaration_with_a_fix(annotation: Any, named: str) -> None:
    says = f"task 't': parameter 'value' is annotated .*{named}.*, which cannot be serialized: .*Annotate it with plain values"
    with pytest.raises(UsageError, match=says):
        taking(annotation)
    with pytest.raises(UsageError, match=says.replace("parameter 'value'", "the result")):
        returning(annotation)


def test_an_unsupported_field_type_is_refused_at_declaration_by_name() -> None:
    @dataclass
    class Upload:
        pieces: list[Annotated[complex, "odd"]]

    with pytest.raises(
        UsageError, match=r"parameter 'value' is annotated .*Upload, which cannot be serialized: complex has no wire"
    ):
        taking(Upload)


def test_a_callable_without_a_signature_is_refused_at_declaration() -> None:
    with pytest.raises(UsageError, match=r"task 'int' has no readable signature: .*Declare a plain function"):
        ArgumentCodec(int, task="int")


def early(value: Late, other: int = 0) -> Late:
    return value


early_arguments, early_result = ArgumentCodec(early, task="early"), ResultCodec(early, task="early")


@dataclass
class Late:
    n: int


def test_a_class_defined_later_in_the_module_is_found_at_first_use() -> None:
    assert there_and_back(early_arguments, Late(1)) == ((Late(1),), {})
    assert early_result.decode(early_result.encode(Late(1))) == Late(1)


def test_local_classes_are_found_before_and_after_the_function() -> None:
    @dataclass
    class Before:
        n: int

    def t(before: Before, after: list[After]) -> After:
        return after[0]

    arguments, result = ArgumentCodec(t, task="t"), ResultCodec(t, task="t")

    @dataclass
    class After:
        n: int

    assert there_and_back(arguments, Before(1), [After(2)]) == ((Before(1), [After(2)]), {})
    assert result.decode(wire({"n": 3})) == After(3)


def test_a_local_class_is_found_after_its_enclosing_function_returned() -> None:
    def declare() -> tuple[Any, ArgumentCodec]:
        @dataclass
        class Local:
            n: int

        def t(local: Local, late: Late) -> None: ...

        return Local, ArgumentCodec(t, task="t")

    local, codec = declare()
    assert there_and_back(codec, local(1), Late(2)) == ((local(1), Late(2)), {})


def test_an_unresolvable_annotation_is_a_usage_error_at_first_use() -> None:
    def t(value: Fraction) -> None: ...

    codec = ArgumentCodec(t, task="t")
    for use in (lambda: codec.encode((1,), {}), lambda: codec.decode(wire([1])), codec.resolve):
        with pytest.raises(UsageError, match=r"task 't': parameter 'value' is annotated Fraction, .*TYPE_CHECKING"):
            use()


def test_an_unresolvable_annotation_does_not_hide_another_unsupported_parameter() -> None:
    def t(value: Fraction, other: complex) -> None: ...

    with pytest.raises(UsageError, match="task 't': parameter 'other' is annotated complex"):
        ArgumentCodec(t, task="t")


def test_a_return_type_that_exists_only_for_type_checkers_does_not_affect_the_arguments() -> None:
    def t(value: int) -> Fraction:
        raise AssertionError(value)

    assert there_and_back(ArgumentCodec(t, task="t"), 1) == ((1,), {})
    result = ResultCodec(t, task="t")
    assert result.encode(1) == wire(1)
    with pytest.raises(UsageError, match=r"task 't': the result is annotated Fraction, .*TYPE_CHECKING"):
        result.decode(wire(1))


# Results


def test_a_result_is_encoded_as_its_plain_value_and_decoded_in_its_type() -> None:
    codec = returning(Point)
    assert codec.encode(Point(1, 2)) == wire([1, 2])
    assert codec.decode(msgspec.Raw(wire([1, 2]))) == Point(1, 2)


@pytest.mark.parametrize("annotation", [Any, object, inspect.Signature.empty])
def test_a_result_without_an_annotation_is_decoded_as_plain_msgpack(annotation: Any) -> None:
    codec = returning(annotation)
    assert codec.decode(codec.encode({"a": (1, None)})) == {"a": [1, None]}


def test_a_function_annotated_noreturn_has_no_result() -> None:
    assert returning(NoReturn).decode(wire(None)) is None


@pytest.mark.parametrize(("value", "named"), [(object(), "object"), (2**64, "int"), ([1j], "list")])
def test_a_result_that_cannot_be_encoded_raises_invalid_result_naming_task_and_type(value: Any, named: str) -> None:
    with pytest.raises(InvalidResult, match=f"task 't': the result of type {named} cannot be encoded: "):
        returning(Any).encode(value)


def test_a_result_is_checked_against_its_annotation_when_stored_and_when_read() -> None:
    codec = returning(int)
    for check in (lambda: codec.encode("x"), lambda: codec.decode(returning(Any).encode("x"))):
        with pytest.raises(
            InvalidResult, match="task 't': the result does not fit its annotation int: Expected `int`, got `str`"
        ):
            check()
