"""The format bytes of MessagePack that kernels read and write (source: the MessagePack specification).

    one byte        FIXMAP | pairs    FIXARRAY | values    FIXSTR | bytes     a number up to FIXINT_MAX
    with a length   STR8 STR16  BIN8 BIN16 BIN32  MAP16 MAP32  ARRAY32
    with a number   INT32 INT64

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
    """Return the size in bytes of the header of an array with `count` values."""
    return next((head_bytes for most, head_bytes in _ARRAY_HEADS if count <= most), _LONG_ARRAY_HEAD)
