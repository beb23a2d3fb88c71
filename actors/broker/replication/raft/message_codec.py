"""The messages of a Raft group as bodies of RAFT_MESSAGE (7210).

    0            4             4 + head bytes
    | head bytes | head (JSON) | records …  |

The head is an array: the name of the message (`actors/raft/messages.py`), then its fields in their order. A
member is `[replica, store id]`, and `records` is null: its bytes are whole records of the CommitLog.
"""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec

from actors.raft.history import GroupHistory
from actors.raft.members import Members
from actors.raft.messages import JoinFrom, Message, NotServed, Records, RepairBytes
from actors.wire.header import I64_MAX
from store.message.buffers import Buffer

HEAD_LENGTH_BYTES: Final = 4
HEAD_BYTES_MAX: Final = 1 << 20
TEXT_CHARS_MAX: Final = 512
ITEMS_MAX: Final = 4096
"""Group records of one message, or members of one configuration."""

_KINDS: Final[dict[str, type[Any]]] = {each.__name__: each for each in get_args(Message)}
_WITH_RECORDS: Final = (Records, RepairBytes)
_WITH_HISTORY: Final = (Records, JoinFrom)
_TERMS_OF_LOG: Final = ("last_term", "term_before")


def encode_message(message: Message) -> bytes:
    """Return the body of a message. Raises ValueError if it exceeds a limit.

    Group records after the end of the records are left out, and a long reason is cut.
    """
    records: Buffer = b""
    head: Message = message
    if isinstance(message, Records):
        records = memoryview(message.records)  # type: ignore[arg-type]
        end = message.offset + len(records)
        history = tuple(each for each in message.history if each.start < end)
        head = message._replace(history=history, records=b"")
    elif isinstance(message, RepairBytes):
        records = memoryview(message.records)  # type: ignore[arg-type]
        head = message._replace(records=b"")
    elif isinstance(message, NotServed):
        head = message._replace(reason=message.reason[:TEXT_CHARS_MAX])
    _check(head)
    fields: list[Any] = [type(head).__name__, *head]
    if isinstance(head, _WITH_RECORDS):
        fields[-1] = None
    text = msgspec.json.encode(fields)
    if len(text) > HEAD_BYTES_MAX:
        raise ValueError(f"the head has {len(text):,} bytes, but the limit is {HEAD_BYTES_MAX:,}")
    return b"".join((len(text).to_bytes(HEAD_LENGTH_BYTES, "big"), text, records))


def decode_message(body: Buffer) -> Message:
    """Return the message in a body; its records are a view of `body`. Raises ValueError if it is invalid."""
    data = memoryview(body)
    head_bytes = int.from_bytes(data[:HEAD_LENGTH_BYTES], "big")
    records_at = HEAD_LENGTH_BYTES + head_bytes
    if not 0 < head_bytes <= HEAD_BYTES_MAX or records_at > len(data):
        raise ValueError(
            f"a head of {head_bytes:,} bytes in a body of {len(data):,}; the limit is {HEAD_BYTES_MAX:,}"
        )
    try:
        fields = msgspec.json.decode(data[HEAD_LENGTH_BYTES:records_at], type=list)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the head is not a JSON array: {error}") from error
    kind = _KINDS.get(fields[0]) if fields and isinstance(fields[0], str) else None
    if kind is None:
        raise ValueError(f"the head begins with {str(fields[:1])[:100]}, which is no message of a group")
    records = data[records_at:]
    if kind in _WITH_RECORDS:
        fields[-1] = records
    elif len(records):
        raise ValueError(f"{len(records):,} bytes follow the head of a {kind.__name__}")
    try:
        message: Message = msgspec.convert(fields[1:], kind)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a valid {kind.__name__}: {error}") from error
    _check(message)
    return message


def _check(message: Message) -> None:
    """Raise ValueError for a number, text or list out of range, or group records that do not ascend.

    No log has records of a term that its owner has not reached.
    """
    for name, value in zip(message._fields, message, strict=True):
        if name != "records":
            _check_value(name, value, least=-1 if name == "request_id" else 0)
        if name in _TERMS_OF_LOG and isinstance(value, int) and value > message.term:
            raise ValueError(f"`{name}` is {value}, above the term {message.term} of the sender")
    if isinstance(message, _WITH_HISTORY):
        last_term = GroupHistory(Members(), message.history).last_term
        if last_term > message.term:
            raise ValueError(f"a group record of term {last_term}, above the term {message.term}")
        if isinstance(message, Records) and message.history and message.history[0].start < message.offset:
            raise ValueError(f"{message.history[0]} begins before offset {message.offset:,}")


def _check_value(name: str, value: Any, least: int = 0) -> None:
    if isinstance(value, int):
        if not least <= value <= I64_MAX:
            raise ValueError(f"`{name}` is {value}, out of the range {least} to {I64_MAX}")
    elif isinstance(value, str):
        if len(value) > TEXT_CHARS_MAX:
            raise ValueError(f"`{name}` has {len(value):,} characters, but the limit is {TEXT_CHARS_MAX}")
    elif isinstance(value, tuple):
        if len(value) > ITEMS_MAX:
            raise ValueError(f"`{name}` has {len(value):,} entries, but the limit is {ITEMS_MAX:,}")
        for each in value:
            _check_value(name, each)
