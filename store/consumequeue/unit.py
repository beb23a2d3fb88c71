"""A consume queue unit: the position of one message in the CommitLog.

20 bytes, big-endian (docs/store-format.md#consume-queue):

    0                8      12         20
    | physicalOffset | size | tagsCode |

The unit (0, 0x7FFFFFFF, 0) is a filler: it reserves the queue offset of a record that no longer exists.
"""

from struct import Struct
from typing import NamedTuple

UNIT_BYTES = 20
FILLER_SIZE = 0x7FFFFFFF
UNIT = Struct(">qiq")
FILLER = UNIT.pack(0, FILLER_SIZE, 0)


class Unit(NamedTuple):
    """One decoded unit; `size` is the size of the record in bytes."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_filler(self) -> bool:
        """True if the unit is a filler and refers to no record."""
        return self.size == FILLER_SIZE and self.physical_offset == 0
