"""The version of the code that a process runs; the driver compares it with that of the actors."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

HEX_DIGITS = 12


@functools.cache
def code_version() -> str:
    """Return a hash of the Python sources in `actors` and `store`, 12 hex digits.

    It is computed once per process. An actor calls this in its constructor, because the files may change
    later while the process still runs the loaded code.
    """
    here = Path(__file__).resolve().parents[1]
    return hash_sources([here, here.parent / "store"])


def hash_sources(folders: list[Path]) -> str:
    """Return a hash of the names and contents of all Python files below `folders`."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{folder.name}/{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:HEX_DIGITS]
