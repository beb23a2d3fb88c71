"""Message ids: offsetMsgId, assigned by the broker, and UNIQ_KEY, assigned by the producer.

See docs/store-format.md#message-ids.

    offsetMsgId, 16 or 28 bytes          UNIQ_KEY, 16 or 28 bytes
    0    4|16   8|20                     0    4|16  6|18   10|22   14|26
    | ip | port | physicalOffset |       | ip | pid | salt | time  | counter |

Both are written as upper-case hex. `time` is in ms since the start of the month in local time. RocketMQ uses
the hash of its class loader as `salt`; RayMQ uses a random number.
"""

import random
import struct
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from store.common.clock import Clock
from store.message.hosts import PORT_BYTES, V4_BYTES, V6_BYTES, Host, unpack_host
from store.store_errors import MessageInvalid

PHYSICAL_OFFSET_BYTES = 8
COUNTER_BITS = 16
TIME_BITS = 32
SEQUENCE_HEX = (TIME_BITS + COUNTER_BITS) // 4
_KEY = f"%s%0{SEQUENCE_HEX}X"  # a nested format specification would be parsed for each key
_LAST_HEX = 3
_LAST_DIGITS = [f"{number:0{_LAST_HEX}X}" for number in range(16**_LAST_HEX)]


def offset_message_id(store_host: Host, physical_offset: int) -> str:
    """Return the offsetMsgId of the record at `physical_offset` on the broker at `store_host`."""
    return (store_host.packed + physical_offset.to_bytes(PHYSICAL_OFFSET_BYTES, "big")).hex().upper()


def offset_message_ids(packed_host: bytes, physical_offsets: Sequence[int]) -> str:
    """Return the offsetMsgIds of several records, separated by commas, as in RocketMQ's response to a batch.

    `packed_host` is the encoded address of the broker (`Host.packed`).
    """
    host = packed_host.hex()
    offsets = struct.pack(f">{len(physical_offsets)}q", *physical_offsets).hex(",", PHYSICAL_OFFSET_BYTES)
    return f"{host}{offsets.replace(',', f',{host}')}".upper()


def decode_message_id(message_id: str) -> tuple[Host, int]:
    """Return the broker's address and the CommitLog offset in an offsetMsgId.

    Raises:
        MessageInvalid: `message_id` is not an offsetMsgId.
    """
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) - PHYSICAL_OFFSET_BYTES not in (V4_BYTES, V6_BYTES) or len(message_id) != 2 * len(raw):
        raise MessageInvalid(f"{message_id!r} is not an offsetMsgId: it must have 32 or 56 hex digits")
    offset = int.from_bytes(raw[-PHYSICAL_OFFSET_BYTES:], "big", signed=True)
    return unpack_host(raw[:-PHYSICAL_OFFSET_BYTES]), offset


class UniqKeyBlock(NamedTuple):
    """A block of consecutive UNIQ_KEYs: key i is `prefix` followed by `first + i` as 12 hex digits."""

    prefix: str
    first: int

    def key(self, index: int) -> str:
        """Return the UNIQ_KEY at `index` in the block, counted from 0."""
        return f"{self.prefix}{self.first + index:0{SEQUENCE_HEX}X}"

    def keys(self, count: int) -> list[str]:
        """Return the first `count` UNIQ_KEYs of the block."""
        # Most keys of a block differ in their last three digits only: take those from a table.
        keys: list[str] = []
        while len(keys) < count:
            high, low = divmod(self.first + len(keys), len(_LAST_DIGITS))
            same = f"{self.prefix}{high:0{SEQUENCE_HEX - _LAST_HEX}X}"
            keys += [same + digits for digits in _LAST_DIGITS[low : low + count - len(keys)]]
        return keys


class UniqKeySource(Protocol):
    """A source of UNIQ_KEYs."""

    def next_block(self, count: int) -> UniqKeyBlock:
        """Return a block of the next `count` UNIQ_KEYs."""


class UniqKeySequence:
    """A fixed sequence of UNIQ_KEYs: key number n is `first.key(n)`. Not thread-safe.

    A job that runs again takes the same keys from an equal sequence.
    """

    def __init__(self, first: UniqKeyBlock) -> None:
        self._next = first

    def next_block(self, count: int) -> UniqKeyBlock:
        """Return a block of the next `count` UNIQ_KEYs."""
        block = self._next
        self._next = UniqKeyBlock(block.prefix, block.first + count)
        return block


def first_sequence(wall_ms: int) -> int:
    """Return time and counter, the last 6 bytes, of the first UNIQ_KEY generated at `wall_ms`."""
    return max(wall_ms - _month_of(wall_ms)[0], 0) << COUNTER_BITS


class UniqKeyGenerator:
    """Generates UNIQ_KEYs that do not repeat within a month. Thread-safe.

    Time and counter form one 48-bit number that only increases. RocketMQ's generator lets the counter wrap
    around, so its keys can repeat above 65,536 keys per millisecond; a bulk send needs more.
    """

    def __init__(self, ip: str, pid: int, clock: Clock, rng: random.Random) -> None:
        address = Host(ip, 0).packed[:-PORT_BYTES]
        self._prefix = (address + (pid & 0xFFFF).to_bytes(2, "big") + rng.randbytes(4)).hex().upper()
        self._clock = clock
        self._lock = threading.Lock()
        self._next = 0
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self) -> str:
        """Return a new UNIQ_KEY."""
        return _KEY % (self._prefix, self._reserve(1))

    def next_block(self, count: int) -> UniqKeyBlock:
        """Return a block of `count` new UNIQ_KEYs."""
        return UniqKeyBlock(self._prefix, self._reserve(count))

    def _reserve(self, count: int) -> int:
        now_ms = self._clock.wall_ms()
        with self._lock:
            if now_ms >= self._month_end_ms:
                self._month_start_ms, self._month_end_ms = _month_of(now_ms)
                self._next = 0
            # If the clock is set back, even to the previous month, no key must repeat.
            elapsed_ms = max(now_ms - self._month_start_ms, 0)
            first = max(self._next, elapsed_ms << COUNTER_BITS)
            self._next = first + count
            return first


def _month_of(wall_ms: int) -> tuple[int, int]:
    """Return start and end of the month that contains `wall_ms`, in local time, as ms since the epoch."""
    now = time.localtime(wall_ms / 1000)
    start = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    end = time.mktime((now.tm_year, now.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(start * 1000), int(end * 1000)
