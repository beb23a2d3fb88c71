"""Status codes, `grpc-message` and `grpc-timeout` (document PROTOCOL-HTTP2 of the gRPC project)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final
from urllib.parse import quote

MESSAGE_CHARS_MAX: Final = 1024
_TIMEOUT_DIGITS_MAX: Final = 8
_UNIT_NS: Final = {
    "H": 3_600_000_000_000,
    "M": 60_000_000_000,
    "S": 1_000_000_000,
    "m": 1_000_000,
    "u": 1_000,
    "n": 1,
}
# All printable ASCII characters but the percent sign stay as they are.
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class StatusCode(IntEnum):
    """The status of a call; the numbers are those of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFailed(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def encode_status_text(text: str) -> str:
    """Return the value of `grpc-message`: percent-encoded, of at most `MESSAGE_CHARS_MAX` characters."""
    return quote(text[:MESSAGE_CHARS_MAX], safe=_PLAIN, errors="replace")


def decode_timeout_ns(text: str) -> int:
    """Return the nanoseconds of a `grpc-timeout`: up to 8 digits and a unit, H, M, S, m, u or n.

    Raises CallFailed if the text has another form.
    """
    digits, unit = text[:-1], text[-1:]
    if unit in _UNIT_NS and digits.isascii() and digits.isdigit() and len(digits) <= _TIMEOUT_DIGITS_MAX:
        return int(digits) * _UNIT_NS[unit]
    raise CallFailed(
        StatusCode.INVALID_ARGUMENT,
        f"grpc-timeout {text[:40]!r} is not valid: send up to 8 digits and a unit, such as 3S",
    )
