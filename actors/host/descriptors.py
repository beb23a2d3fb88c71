"""The limit of open files and sockets of this process (RLIMIT_NOFILE), when it starts.

open now | kept free (OTHERS, RESERVED) | files: 3 × max_open_files or less | connections: a quarter or more
"""

from __future__ import annotations

import resource
from typing import Final

from actors.ports import OTHERS, RESERVED, open_descriptors
from store.common.logs import get_logger
from store.store_errors import StoreError

_log = get_logger(__name__)

FILE_DESCRIPTORS: Final = 3
"""An open file of the log has two descriptors, as Python's mmap has its own, and that of a queue one."""
FILES_MIN: Final = 32
CONNECTIONS_MIN: Final = 64


def reserve_descriptors(connections: int, files: int = 0) -> int:
    """Raise the soft limit as far as connections and files need it, and the hard limit allows.

    Args:
        connections: how many there may be.
        files: how many files of the log, and how many of queues, may be open.

    Returns:
        How many files may be open: less than `files`, with a warning, if the hard limit requires it.

    Raises:
        StoreError: the hard limit is too low for the least number of files and connections.
    """
    soft, system_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = open_descriptors() + OTHERS + RESERVED
    needed = own + FILE_DESCRIPTORS * files + connections
    hard = max(soft, needed) if system_hard == resource.RLIM_INFINITY else system_hard
    least_files = min(files, FILES_MIN)
    least = own + FILE_DESCRIPTORS * least_files + CONNECTIONS_MIN
    if hard < least:
        raise StoreError(
            f"the hard limit of open files is {hard:,}; this process needs {least:,}: {own:,} for itself, "
            f"{FILE_DESCRIPTORS * least_files:,} for files, and {CONNECTIONS_MIN} for connections. "
            "Raise it (ulimit -Hn, LimitNOFILE of systemd, nofile in limits.conf)"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), system_hard))
    if hard >= needed:
        return files
    fitting = (hard - own - max(hard // 4, CONNECTIONS_MIN)) // FILE_DESCRIPTORS
    fitting = max(min(files, fitting), least_files)
    _log.warning(
        "max_connections_reduced",
        max_connections=connections,
        effective=hard - own - FILE_DESCRIPTORS * fitting,
        max_open_files=files,
        effective_files=fitting,
        descriptors=hard,
        remedy="raise the limit of open files (ulimit -n), or lower max_connections",
    )
    return fitting
