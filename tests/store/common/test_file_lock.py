"""File locks: who gets them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from store.common.file_lock import try_lock


def test_file_lock_excludes_another_descriptor_until_it_is_closed(tmp_path: Path) -> None:
    first, second = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)

    assert try_lock(first)
    assert not try_lock(second, 0.05)
    os.close(first)
    assert try_lock(second)
    os.close(second)


def test_file_lock_is_tried_again_until_it_is_free() -> None:
    tries = 0

    def lock(_: int) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise BlockingIOError

    assert try_lock(0, 60, lock)
    assert tries == 3


def test_file_system_without_locks_is_reported(tmp_path: Path) -> None:
    def lock(_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    with pytest.raises(OSError, match="no locks"):
        try_lock(0, 60, lock)
