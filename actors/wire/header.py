"""Header: typed fields of a command's header.

A subclass declares each field once. `consumer_group: Group` is `consumerGroup` on the wire unless the field
names another key. A field without a default is required. On the wire all values are strings.

Each text is declared with its largest length: `Topic`, `Group`, `ClientId`, `Expression`, `Name` or `Text`.
A plain `str` is an error when the class is defined, so that no field can be kept that is as long as a frame.
Numbers are declared as `Long` or `Int`; in RayMQ's own requests as `Count`, `Id` or `IdOrNone`, which have a
least value. Bodies use the same types.

msgspec converts them: a header of four fields takes 0.3 µs, a Python loop over its fields 1.0 µs.
"""

import inspect
from collections.abc import Collection, Iterator, Mapping, Sized
from types import NoneType
from typing import Annotated, Any, Final, Self, TypeVar, get_args, get_origin

import msgspec

from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.message.validate import MAX_GROUP_CHARS, MAX_RETRY_TOPIC_CHARS

I32_MAX: Final = 2**31 - 1
I64_MAX: Final = 2**63 - 1

# A 64-bit number, as in Java: a configuration table that contained a larger one could not be saved.
Long = Annotated[int, msgspec.Meta(ge=-I64_MAX, le=I64_MAX)]
Int = Annotated[int, msgspec.Meta(ge=-I32_MAX, le=I32_MAX)]
"""A 32-bit number, as in Java: queue ids, numbers of queues and flags."""

# Bounds of RayMQ's own requests; RocketMQ accepts negative numbers in its requests, and so do we.
Count = Annotated[int, msgspec.Meta(ge=0, le=I64_MAX)]
"""A number of messages, bytes or milliseconds, or an offset."""
Id = Annotated[int, msgspec.Meta(ge=0, le=I32_MAX)]
"""A queue, a replica or a number of queues."""
IdOrNone = Annotated[int, msgspec.Meta(ge=-1, le=I32_MAX)]
"""A queue or a replica; -1 if the request names none."""

CLIENT_ID_CHARS_MAX: Final = 1024
TEXT_CHARS_MAX: Final = 32_767
EXPRESSION_CHARS_MAX: Final = TEXT_CHARS_MAX

# A new topic may have 127 characters (`check_topic`), the retry or dead-letter topic of a group 255.
Topic = Annotated[str, msgspec.Meta(max_length=MAX_RETRY_TOPIC_CHARS)]
Group = Annotated[str, msgspec.Meta(max_length=MAX_GROUP_CHARS)]
ClientId = Annotated[str, msgspec.Meta(max_length=CLIENT_ID_CHARS_MAX)]
Expression = Annotated[str, msgspec.Meta(max_length=EXPRESSION_CHARS_MAX)]
"""A tag or SQL92 expression, if `compile_filter` does not check it."""
Name = Annotated[str, msgspec.Meta(max_length=512)]
"""The name of a broker, a cluster, a user or a strategy, or an address."""
Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
"""Any other text; the longest property string of a message fits."""
FrameText = Annotated[str, msgspec.Meta(max_length=16 * 1024 * 1024)]
"""A text that the handler checks itself, with RocketMQ's own code, before it keeps it."""

ITEMS_MAX: Final = 1024
QUEUES_MAX: Final = 16_384
FRAME_ITEMS_MAX: Final = 65_536

_T = TypeVar("_T")
_K = TypeVar("_K")
ListOf = Annotated[list[_T], msgspec.Meta(max_length=ITEMS_MAX)]
"""A list in a request, such as the groups in a heartbeat."""
TableOf = Annotated[dict[_K, _T], msgspec.Meta(max_length=ITEMS_MAX)]
"""A table in a request, such as the subscriptions of a member."""
QueuesOf = Annotated[list[_T], msgspec.Meta(max_length=QUEUES_MAX)]
"""A list in a request with an entry per queue of one member on one broker."""
LongListOf = Annotated[list[_T], msgspec.Meta(max_length=FRAME_ITEMS_MAX)]
"""A list in a request with an entry per queue of one member on all brokers, or per member of a group."""
AnyListOf = Annotated[list[_T], msgspec.Meta(max_length=16 * 1024 * 1024)]
"""A list in a response, which is as long as its frame allows."""
AnyTableOf = Annotated[dict[_K, _T], msgspec.Meta(max_length=16 * 1024 * 1024)]
"""A table in a response, which is as long as its frame allows."""

wire = msgspec.field

_TRUE: Final = frozenset({"true", "1", "True", "TRUE"})
_BOOLS: Final = ("false", "true")


class Header(msgspec.Struct, rename="camel", gc=False):
    """Base class of typed headers; converts from and to the string fields (`ext`) of a command."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise TypeError for a field whose length is not bounded."""
        super().__init_subclass__(**options)
        refuse_unbounded(cls, {str})

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Return the header decoded from `ext`. Raises Refused if a field is missing or invalid."""
        try:
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError:
            return cls(**_read_each(cls, ext))

    @classmethod
    def refuse_long_fields(cls, ext: Mapping[str, str]) -> None:
        """Raise Refused if a text in `ext` exceeds the largest length of its field."""
        for item in msgspec.structs.fields(cls):
            _check_length(item, ext.get(item.encode_name, ""))

    def to_ext(self) -> dict[str, str]:
        """Return the header as string fields; a field whose value is `None` is omitted."""
        ext = {}
        values = msgspec.structs.astuple(self)
        for key, value in zip(self.__struct_encode_fields__, values):  # noqa: B905 - `strict` takes 0.2 µs
            if value is not None:
                ext[key] = _BOOLS[value] if value is True or value is False else str(value)
        return ext


def missing_field(key: str) -> Refused:
    """Return the error for a missing required field: SYSTEM_ERROR, as in RocketMQ."""
    return Refused(
        ResponseCode.SYSTEM_ERROR, f"the header field `{key}` is missing: this request requires it"
    )


def read_bool(text: str) -> bool:
    """Return True for `true` (Java) and `1` (C++), and False for any other text, as Java does."""
    return text in _TRUE


def refuse_unbounded(owner: type, kinds: Collection[Any]) -> None:
    """Raise TypeError if a field of the class has one of these types without a largest length."""
    for name, annotation in inspect.get_annotations(owner).items():
        for part in _unbounded_parts(annotation):
            if part in kinds:
                raise TypeError(
                    f"{owner.__name__}.{name}: {part.__name__} without a largest length: "
                    "declare it with a type of actors.wire.header, such as Topic, Text or ListOf"
                )


def too_long(kind: str, key: str, value: Sized, limit: int) -> Refused:
    """Return the error for a text or list that exceeds its limit; `kind` is `header field`, for example."""
    if isinstance(value, str):
        size = f"{len(value):,} characters ({value[:40]!r}…)"
    else:
        size = f"{len(value):,} entries"
    return Refused(
        ResponseCode.SYSTEM_ERROR, f"{kind} `{key}` has {size}, but the limit is {limit:,}: shorten it"
    )


def _unbounded_parts(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation that have no `max_length`, such as `str` and `list`."""
    if get_origin(annotation) is Annotated:
        kind, *metas = get_args(annotation)
        if any(isinstance(meta, msgspec.Meta) and meta.max_length is not None for meta in metas):
            for part in get_args(kind):
                yield from _unbounded_parts(part)
            return
        annotation = kind
    yield get_origin(annotation) or annotation
    for part in get_args(annotation):
        yield from _unbounded_parts(part)


def _read_each(header_type: type[Header], ext: Mapping[str, str]) -> dict[str, Any]:
    """Decode the fields one by one, after msgspec has rejected them.

    Accepts integers with blanks (` 5 `) and any text for a boolean. An invalid field raises Refused, which
    names it.
    """
    values: dict[str, Any] = {}
    for item in msgspec.structs.fields(header_type):
        key, text = item.encode_name, ext.get(item.encode_name)
        if text is None:
            if item.required:
                raise missing_field(key)
            continue
        kind, meta = _plain_type(item.type)
        if kind is str:
            _check_length(item, text)
            values[item.name] = text
        elif kind is bool:
            values[item.name] = read_bool(text)
        else:
            values[item.name] = _read_int(key, text, meta)
    return values


def _check_length(item: msgspec.structs.FieldInfo, text: str) -> None:
    _, meta = _plain_type(item.type)
    if meta is not None and meta.max_length is not None and len(text) > meta.max_length:
        raise too_long("the header field", item.encode_name, text, meta.max_length)


def _plain_type(annotation: Any) -> tuple[Any, msgspec.Meta | None]:
    """Return the type `T` of an annotation `Annotated[T, meta]` or `T | None`, and its Meta."""
    if get_origin(annotation) is Annotated:
        kind, meta, *_ = get_args(annotation)
        return kind, meta
    inner = [each for each in get_args(annotation) if each is not NoneType]
    return _plain_type(inner[0]) if inner else (annotation, None)


def _read_int(key: str, text: str, meta: msgspec.Meta | None) -> int:
    bits = 64
    try:
        value = int(text)
        if abs(value) <= I64_MAX:
            bits = 32
            least, most = (-I64_MAX, I64_MAX) if meta is None else (meta.ge, meta.le)
            assert isinstance(least, int)
            assert isinstance(most, int)
            if least <= value <= most:
                return value
            if value < least and least >= -1:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the header field `{key}` is {value:,}: it must be {least} or more",
                )
    except ValueError:
        pass
    raise Refused(
        ResponseCode.SYSTEM_ERROR, f"the header field `{key}` is not a {bits}-bit integer: {text[:100]!r}"
    )
