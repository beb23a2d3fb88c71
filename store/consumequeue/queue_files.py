"""What all consume queues of a store share: assigned offsets, descriptors and the list of changed queues."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from store.disk.files import Descriptors
from store.disk.residency import Residency

if TYPE_CHECKING:
    from store.consumequeue.consume_queue import ConsumeQueue


class AssignedOffsets:
    """The queue offset that the next appended message of each queue gets, in one array for compiled code."""

    def __init__(self) -> None:
        self.offsets = np.zeros(256, np.int64)
        self.view = self.offsets.data
        self.version = 0
        """Changes when a queue was removed: its index is not used again."""
        self._count = 0

    def add(self) -> int:
        """Return the index of a new queue."""
        index = self._count
        if index == len(self.offsets):
            self.offsets = np.concatenate((self.offsets, np.zeros(index, np.int64)))
            self.view = self.offsets.data
        self._count += 1
        return index


class QueueFiles(NamedTuple):
    """The file size, open descriptors and other objects that all consume queues of a store share.

    `changed` lists the queues that changed since the last checkpoint; each queue occurs once.
    """

    file_bytes: int
    units_per_file: int
    descriptors: Descriptors
    changed: "list[ConsumeQueue]"
    residency: Residency
    assigned: AssignedOffsets
