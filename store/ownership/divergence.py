"""The file `diverged.json`: the log of this slave differs from its master's, and replication has stopped.

The slave writes it when it stops, and removes it when its log is a part of its master's again; a master
removes it at its start. `raymq replica resync` (`store.tools.resync`) reads it.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from store.disk.files import replace_file, sync_directory
from store.store_errors import StoreError

DIVERGED_FILE = "diverged.json"
_Offset = Annotated[int, msgspec.Meta(ge=0)]


class Divergence(msgspec.Struct, frozen=True, rename="camel"):
    """Where the log of a slave differs from its master's.

    Attributes:
        position: The CommitLog offset from which on the logs differ. Earlier bytes can differ too, because a
            slave compares only the end of its log.
        master: The address of the master.
        epoch: The epoch of the master; 0 if its group has no epochs.
        commit_log_file_bytes: The size of the master's log files in bytes.
        reason: Both positions, as text.
    """

    position: _Offset
    master: str
    epoch: _Offset
    commit_log_file_bytes: Annotated[int, msgspec.Meta(gt=0)]
    reason: str


def write_divergence(root: Path, divergence: Divergence) -> None:
    """Write the file into the store at `root`, durably and atomically. Raises OSError."""
    replace_file(root / DIVERGED_FILE, msgspec.json.format(msgspec.json.encode(divergence)))


def read_divergence(root: Path) -> Divergence | None:
    """Return the content of the file, or None if it does not exist.

    Raises StoreError if it is damaged, OSError if it cannot be read.
    """
    path = root / DIVERGED_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Divergence)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise StoreError(
            f"is damaged: {error} (start the broker: it writes the file again if the logs differ)", path
        ) from error


def remove_divergence(root: Path) -> None:
    """Remove the file, durably, if it exists. Raises OSError."""
    path = root / DIVERGED_FILE
    if path.exists():
        path.unlink()
        sync_directory(root)
