"""A unit of a consume queue: where one message lies in the CommitLog.

20 bytes, big-endian (store format, section 3):

    0                8      12         20
    | physicalOffset | size | tagsCode |

A unit (0, 0x7FFFFFFF, 0) only holds a place.
"""

from struct import Struct
from typing import NamedTuple

UNIT_BYTES = 20
FILLER_SIZE = 0x7FFFFFFF
UNIT = Struct(">qiq")
FILLER = UNIT.pack(0, FILLER_SIZE, 0)


class Unit(NamedTuple):
    """One message's place; `size` counts the record's bytes."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_filler(self) -> bool:
        """Whether it only holds a place."""
        return self.size == FILLER_SIZE and self.physical_offset == 0
