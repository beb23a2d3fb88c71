"""The file `raymq.copying`: an empty slave copies its master's log, and lacks a part of the tables with it.

    the slave's log is empty       the file is written
    the log and the tables that   the file is removed
    the master had are copied

A store with this file must not become a master's: without the ends of queues whose messages are all deleted,
new messages would get offsets that consumers have passed, and groups would lose their offsets. Both are
copied last, because they refer to the log.
"""

from pathlib import Path

from store.disk.files import replace_file, sync_directory
from store.store_errors import StoreError

COPYING_FILE = "raymq.copying"


def begin_first_copy(root: Path) -> None:
    """Record in the store at `root`, durably, that it copies the log of a master. Raises OSError."""
    replace_file(root / COPYING_FILE, b"")


def is_first_copy(root: Path) -> bool:
    """Return True if the store at `root` lacks a part of the log and tables of its master."""
    return (root / COPYING_FILE).exists()


def end_first_copy(root: Path) -> None:
    """Remove the file, durably, if it exists. Raises OSError."""
    path = root / COPYING_FILE
    if path.exists():
        path.unlink()
        sync_directory(root)


def refuse_first_copy(root: Path) -> None:
    """Raise StoreError if the store at `root` lacks a part of the log and tables of its master."""
    if is_first_copy(root):
        raise StoreError(
            "is there: this slave has not copied all of its master's tables yet. Start it with role: slave, "
            "and its master, until the file is removed. If the master is lost for good, delete the file: "
            "groups may begin without offsets, and queues whose messages are all deleted at offset 0 again",
            root / COPYING_FILE,
        )
