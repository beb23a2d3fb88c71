"""StoreCheckpoint: the file `checkpoint`, which lists what is durable (docs/store-format.md#checkpoint).

RocketMQ's recovery reads this file. It has 4,096 bytes, big-endian, zeros after the last field:

    0                   8                    16                  24                   32
    | physicMsgTimestamp | logicsMsgTimestamp | indexMsgTimestamp | masterFlushedOffset | confirmPhyOffset |
"""

from dataclasses import dataclass
from pathlib import Path
from struct import Struct

CHECKPOINT_BYTES = 4096
MARGIN_MS = 3_000  # storeTimestamps may be out of order by at most this much

_FIELDS = Struct(">qqqqq")


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """The fields of the checkpoint file.

    The timestamps are the storeTimestamps of the last durable message in CommitLog, consume queues and index.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0

    @classmethod
    def read(cls, path: Path) -> "StoreCheckpoint":
        """Read the checkpoint file at `path`.

        A missing or short file results in zeros, which make recovery check everything.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return cls()
        return cls(*_FIELDS.unpack_from(content)) if len(content) >= _FIELDS.size else cls()

    def encode(self) -> bytes:
        """Return the content of the checkpoint file."""
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
        """The time before which all stored messages are durable in CommitLog and consume queues, in ms.

        Corresponds to RocketMQ's getMinTimestamp.
        """
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - MARGIN_MS, 0)
