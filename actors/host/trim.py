"""Trim: returns freed memory to the system, which the allocator would keep for later."""

from __future__ import annotations

import ctypes
from typing import Final

from actors.memory_account import MemoryAccount

RELEASED_BYTES: Final = 32 * 1024 * 1024
_LIBC: Final = ctypes.CDLL(None)


def trim_if_released(account: MemoryAccount) -> None:
    """Return free memory to the system if much was released since the last time: takes a few milliseconds."""
    if account.peak_bytes - account.used_bytes >= RELEASED_BYTES:
        account.peak_bytes = account.used_bytes
        trim = getattr(_LIBC, "malloc_trim", None)  # only glibc has it
        if trim is not None:
            trim(0)
