"""What a process holds of memory that is its own, not the page cache's."""

from __future__ import annotations

from pathlib import Path

_FIELD = "RssAnon:"


def anonymous_bytes(pid: int) -> int:
    """RssAnon of a process. Raises OSError when it is gone."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_FIELD))
