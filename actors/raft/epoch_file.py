"""The text of `epochFileCheckpoint`, RocketMQ's list of terms (epochs) with their first offsets.

    2                   number of lines
    4089397671          CRC32 of the lines after this one; RocketMQ takes 0 as unchecked
    1-0                 epoch - CommitLog offset
    4-1648218

It is exported for RocketMQ's tools; RayMQ reads the terms from the log.
"""

import zlib
from collections.abc import Sequence

EPOCH_FILE_CHECKPOINT = "epochFileCheckpoint"


def epoch_file_text(epochs: Sequence[tuple[int, int]]) -> str:
    """Return the content of the file for these (term, offset) pairs."""
    lines = "".join(f"{term}-{offset}\n" for term, offset in epochs)
    return f"{len(epochs)}\n{zlib.crc32(lines.encode())}\n{lines}"
