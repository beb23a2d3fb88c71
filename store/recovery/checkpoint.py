"""StoreCheckpoint: how far things were durable, as RocketMQ's recovery wants to know it (store format 5.1).

4,096 bytes, big-endian, zeros after the last field:

    0                   8                    16                  24                   32
    | physicMsgTimestamp | logicsMsgTimestamp | indexMsgTimestamp | masterFlushedOffset | confirmPhyOffset |
"""

from dataclasses import dataclass
from pathlib import Path
from struct import Struct

CHECKPOINT_BYTES = 4096
MARGIN_MS = 3_000  # messages are stored this much out of order at most

_FIELDS = Struct(">qqqqq")


@dataclass(slots=True)
class StoreCheckpoint:
    """Timestamps are those of the last message that is durable in the log, the queues and the index."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0

    @classmethod
    def read(cls, path: Path) -> "StoreCheckpoint":
        """What the file says; zeros, which make recovery look at everything, when it says nothing."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return cls()
        return cls(*_FIELDS.unpack_from(content)) if len(content) >= _FIELDS.size else cls()

    def encode(self) -> bytes:
        """The file's content."""
        fields = _FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        )
        return fields.ljust(CHECKPOINT_BYTES, b"\0")

    @property
    def min_timestamp(self) -> int:
        """What is older than this is durable in log and queues (RocketMQ's getMinTimestamp)."""
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - MARGIN_MS, 0)
