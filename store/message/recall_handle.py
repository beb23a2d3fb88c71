"""RecallHandle: names a pending timer message, so that its producer can recall it (protocols, A).

URL-safe base64 of `v1 <topic> <broker name> <delivery time in ms> <UNIQ_KEY>`.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

from store.store_errors import MessageInvalid

_VERSION = "v1"
_PARTS = 5
_TIME = re.compile(r"[0-9]{1,18}")
_SHOWN = 100
_CHARS_MAX = 64 * 1024  # of base64: more than a message with the longest properties has


class RecallHandle(NamedTuple):
    """The parts of a handle; `deliver_ms` is in ms since the epoch."""

    topic: str
    broker_name: str
    deliver_ms: int
    uniq_key: str

    def encode(self) -> str:
        """Return the text of the handle."""
        text = " ".join((_VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.uniq_key))
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle:
        """Return the parts of a handle. Raises MessageInvalid if it is not a handle."""
        try:
            data = handle.encode("ascii") if len(handle) <= _CHARS_MAX else b""
            padded = data + b"=" * (-len(data) % 4)
            parts = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, UnicodeError):
            parts = []
        if len(parts) < _PARTS or parts[0] != _VERSION or not _TIME.fullmatch(parts[3]):
            raise MessageInvalid(
                f"recall handle is invalid: {handle[:_SHOWN]!r}; give the handle of the send result"
            )
        return cls(parts[1], parts[2], int(parts[3]), parts[4])
