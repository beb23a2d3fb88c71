"""The heads of MessagePack's values, as far as kernels write and read them; source: its specification.

    one byte    FIXMAP | pairs    FIXARRAY | values    FIXSTR | bytes     a number up to FIXINT_MAX
    and more    STR8 STR16  BIN8 BIN16 BIN32  MAP16 MAP32  ARRAY32: a length    INT32 INT64: a number

Lengths and numbers are big-endian.
"""

FIXINT_MAX = 0x7F
FIXMAP, FIXARRAY, FIXSTR = 0x80, 0x90, 0xA0
FIXMAP_MAX, FIXSTR_MAX = 15, 31
BIN8, BIN16, BIN32 = 0xC4, 0xC5, 0xC6
INT32, INT64 = 0xD2, 0xD3
STR8, STR16 = 0xD9, 0xDA
ARRAY32 = 0xDD
MAP16, MAP32 = 0xDE, 0xDF

_ARRAY_HEADS = ((15, 1), (0xFFFF, 3))
_LONG_ARRAY_HEAD = 5


def array_head_bytes(count: int) -> int:
    """The bytes before the first value of an array of so many."""
    return next((head_bytes for most, head_bytes in _ARRAY_HEADS if count <= most), _LONG_ARRAY_HEAD)
