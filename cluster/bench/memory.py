"""Anonymous memory of a process."""

from __future__ import annotations

from pathlib import Path

_FIELD = "RssAnon:"


def anonymous_bytes(pid: int) -> int:
    """Return the resident anonymous memory (RssAnon) of `pid`, which excludes mapped files.

    Raises OSError if the process no longer exists.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_FIELD))
