"""The version of the code that a process runs, so that the driver can tell an actor made with older code."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

HEX_DIGITS = 12


@functools.cache
def code_version() -> str:
    """Hash of the sources that actors run (`actors`, `store`): 12 hex digits, taken once, when first asked.

    An actor asks in its constructor: afterwards the files may change under it, what it has loaded does not.
    """
    here = Path(__file__).resolve().parents[1]
    return hash_sources([here, here.parent / "store"])


def hash_sources(folders: list[Path]) -> str:
    """Hash names and contents of the Python files below `folders`."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{folder.name}/{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:HEX_DIGITS]
