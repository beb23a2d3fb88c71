"""The id of this machine, by which a bulk reader recognizes the stores that it can map."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

MACHINE_ENV = "RAYMQ_MACHINE_ID"


def machine_id() -> str:
    """Return the id of this machine: the value of RAYMQ_MACHINE_ID, or else the id of the kernel's boot.

    Processes with the same id, including those of different containers, share the pages of mapped files. On
    another machine the files of a store may be visible through a network file system, which may not have the
    newest pages. The variable lets several Ray nodes on one machine act as different machines.
    """
    return os.environ.get(MACHINE_ENV) or _boot_id()


@cache
def _boot_id() -> str:
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.exists() else socket.gethostname()
