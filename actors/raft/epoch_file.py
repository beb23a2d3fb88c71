"""The text of `epochFileCheckpoint`, RocketMQ's list of terms (epochs) with their first offsets.

    2                   number of lines
    4271976928          CRC32 of the lines after this one; RocketMQ takes 0 as unchecked
    1-0                 epoch - CommitLog offset
    2-1648218

A Raft group exports it for RocketMQ's tools and reads its terms from the log. A group of master and slaves
keeps its epochs in it.
"""

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from store.store_errors import StoreError

EPOCH_FILE_CHECKPOINT = "epochFileCheckpoint"
FENCED_FILE = "fenced.json"
"""File of a master that was refused by a nameserver, because another replica was promoted."""
_ENTRY = re.compile(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)


def epoch_file_text(epochs: Sequence[tuple[int, int]]) -> str:
    """Return the content of the file for these (term, offset) pairs."""
    lines = "".join(f"{term}-{offset}\n" for term, offset in epochs)
    return f"{len(epochs)}\n{zlib.crc32(lines.encode())}\n{lines}"


def read_epochs(path: Path) -> list[tuple[int, int]]:
    """Return the (epoch, CommitLog offset) pairs of a file; none if it does not exist.

    Raises:
        StoreError: the file is damaged. A damaged list is never taken as a shorter one: the broker would
            forget that a newer master exists.
        OSError: the file cannot be read.
    """
    try:
        text = path.read_bytes().decode("ascii", "replace")
    except FileNotFoundError:
        return []
    lines = text.split("\n")
    found = [_ENTRY.fullmatch(line) for line in lines[2:-1]]
    epochs = [(int(each[1]), int(each[2])) for each in found if each is not None]
    checks = {"0", str(zlib.crc32("".join(f"{line}\n" for line in lines[2:-1]).encode()))}
    if lines[0] != str(len(epochs)) or len(epochs) != len(found) or lines[1] not in checks:
        raise StoreError("the list of epochs is damaged: restore it from another replica of the group", path)
    if not is_increasing(epochs):
        raise StoreError(f"the epochs {epochs} do not increase: restore it from another replica", path)
    return epochs


def is_increasing(epochs: Sequence[tuple[int, int]]) -> bool:
    """Return True if each epoch is greater than the one before, and begins at a greater offset."""
    return all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(epochs))
